// The ABI of the native library: all structures and exported functions.
//
// library.py gives the part between the two markers to cffi, with pointers to numbers as uintptr_t:
// Python passes addresses of tensors as integers, without a cast per argument. Declare one field or
// parameter per declarator, and use no preprocessor there.
//
// Functions return a number >= 0, or an error: -1 out of memory, -2 another C++ exception.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// ---- cffi: begin

// W_OI in panels of weft_panel_width() outputs (packed.py).
typedef struct {
  int64_t bits;  // 32: float; 8: scale * (q - 128); 4: scale * q + minimum; q is unsigned
  int64_t inputs;
  int64_t outputs;
  const void* data;
  const uint16_t* scales;  // half floats [panel][group of 32 inputs][panel width]
  const uint16_t* minima;
  int64_t int8_activations;  // quantized kinds: inputs are quantized to int8 (int8_gemm.h)
} WeftPackedMatrix;

typedef struct {
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  int64_t is_centered;  // layernorm; else rmsnorm
  float eps;
  float offset;  // added to the weight
} WeftNorm;

typedef struct {
  const WeftPackedMatrix* matrix;
  const float* bias;  // null: 0
} WeftLinear;

// Distances in floats; the elements of one head are contiguous.
typedef struct {
  int64_t page;
  int64_t row;
  int64_t head;
} WeftPageStrides;

// Packed queries of several sequences over their keys and values in pages.
typedef struct {
  const float* q;
  const float* k;
  const float* v;
  const float* bias;  // [heads, distances], or that for each token; null: none
  const float* mask;  // [tokens, slots], added to the scores of all heads; null: none
  float* out;
  float* lse;              // null: not wanted
  const int32_t* offsets;  // of each sequence's queries, and their total
  const int32_t* starts;   // slot of the first query
  const int32_t* lengths;  // number of keys
  const int32_t* table;    // pages; page 0 is padding
  const int32_t* order;    // sequences with a common prefix next to each other
  WeftPageStrides k_stride;
  WeftPageStrides v_stride;
  int64_t q_token;  // stride of q
  int64_t q_head;
  int64_t sequences;
  int64_t table_stride;
  int64_t heads;
  int64_t key_heads;
  int64_t head_size;
  int64_t value_size;
  int64_t page_rows;
  int64_t is_causal;
  int64_t window;  // 0: none
  int64_t distances;
  int64_t zero_distance;  // entry of the bias for a query's own slot
  int64_t bias_token;     // stride of the bias; 0: the same for all tokens
  int64_t mask_token;     // stride of the mask; its rows cover whole tiles of 32 slots
  int64_t threads;
  float scale;
  float softcap;  // 0: none
} WeftPagedAttention;

// Contiguous rows with strides for batch, head and token; data may be null.
typedef struct {
  float* data;
  int64_t batch;
  int64_t head;
  int64_t token;
} WeftStridedRows;

typedef struct {
  WeftStridedRows q;
  WeftStridedRows k;
  WeftStridedRows v;
  WeftStridedRows added;  // to the scores
  WeftStridedRows out;
  WeftStridedRows dout;
  WeftStridedRows dq;
  WeftStridedRows dk;
  WeftStridedRows dv;
  float* weights;     // [B, H, T, S padded to 16]
  float* lse;         // [B, H, T]
  const float* dlse;  // null: 0
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t keys;
  int64_t head_size;
  int64_t value_size;
  int64_t threads;
  float scale;
} WeftShortAttention;

// The norms of a residual connection.
typedef struct {
  WeftNorm norm;
  WeftNorm norm_out;  // of the sublayer's output, with placement 2
} WeftResidualNorms;

typedef struct {
  WeftLinear qkv;
  WeftLinear out;
  WeftNorm query_norm;
  WeftNorm key_norm;
  int64_t has_norms;
  int64_t heads;
  int64_t key_heads;
  int64_t head_size;
  int64_t value_size;
} WeftAttention;

typedef struct {
  int64_t width;
  int64_t placement;  // of the norms: 0 before, 1 after, 2 both
  int64_t has_cross;
  WeftResidualNorms self_norms;
  WeftResidualNorms cross_norms;
  WeftResidualNorms feedforward_norms;
  WeftAttention self;
  WeftAttention cross;
  WeftLinear up;
  WeftLinear down;
  int64_t inner;
  int64_t is_gated;
  int64_t activation;
} WeftLayer;

// RoPE: cosine and signed sine of each position, in rows that are `stride` apart. The first `size`
// elements of a head are rotated.
typedef struct {
  const float* cos;  // null: no rotation
  const float* sin;
  const int64_t* positions;  // of the tokens
  int64_t stride;
  int64_t size;
  int64_t is_interleaved;
} WeftRotary;

// The arguments that layers with the same mask, rotation and page layouts share.
typedef struct {
  float* scratch;
  const int64_t* slots;  // row of the pages into which each token's key and value are written
  int64_t rows;          // tokens
  int64_t threads;
  WeftRotary rotary;
  WeftPagedAttention self;  // q, k, v, out and lse are set for each layer
  WeftPagedAttention cross;
} WeftLayerPass;

// A layer and its pages.
typedef struct {
  const WeftLayer* layer;
  float* k;
  float* v;
  const float* cross_k;
  const float* cross_v;
  int64_t pass_index;
} WeftPlacedLayer;

// x = norm(matrix[id] * scale + added[position])
typedef struct {
  const WeftPackedMatrix* matrix;
  const float* added;  // position embeddings; null: none
  WeftNorm norm;
  int64_t has_norm;
  int64_t width;
  float scale;
} WeftEmbedding;

typedef struct {
  WeftEmbedding embedding;
  const WeftPlacedLayer* layers;
  int64_t num_layers;
  WeftNorm norm;  // after the last layer
  int64_t has_norm;
  WeftLinear head;
  float head_scale;
} WeftDecoder;

// One token of each sequence. Results: the top k, best first, and the log-sum-exp.
typedef struct {
  WeftLayerPass* const* passes;
  int64_t num_passes;
  const int64_t* ids;
  const int64_t* banned;
  int64_t num_banned;
  int64_t k;
  float* top_values;
  int64_t* top_ids;
  double* log_sum_exp;
  int64_t threads;
} WeftDecodeStep;

// Greedy decoding of several sequences, `group` of them at a time.
typedef struct {
  WeftDecodeStep step;  // passes of all sequences; ids and results are set for each step
  int64_t sequences;
  int64_t group;
  int64_t stride;
  const int64_t* ids;     // last token of each sequence
  const int64_t* ends;    // end token of each; negative: none
  const int64_t* limits;  // maximum number of steps of each
  double* scores;         // the log-probability of each token is added
  int64_t* tokens;        // [sequences, stride]: the generated tokens
} WeftGreedy;

int64_t weft_panel_width(void);

// Sets the number of threads of parallel regions that the calling thread starts (torch's too, which
// asks OpenMP). Other threads keep theirs.
int64_t weft_set_num_threads(int64_t threads);

// Lets threads sleep at barriers after 2 us (is_on), or after GOMP_SPINCOUNT iterations.
int64_t weft_set_throttled(int64_t is_on);

// y = x W^T + bias for outputs begin..end.
int64_t weft_linear(const WeftPackedMatrix* matrix, const float* x, const float* bias, float* y,
                    int64_t rows, int64_t x_stride, int64_t y_stride, int64_t begin, int64_t end,
                    int64_t threads);

// y = matrix[ids]. Returns the number of ids before the first that is out of range.
int64_t weft_embedding_rows(const WeftPackedMatrix* matrix, const int64_t* ids, int64_t num,
                            float* y);

int64_t weft_norm(const WeftNorm* norm, const float* x, float* y, int64_t rows, int64_t size,
                  int64_t x_stride, int64_t threads);

// kind: 0 sigmoid, 1 silu, 2 gelu_tanh, 3 gelu, 4 relu. `up` may be null; it has the stride of x.
int64_t weft_activation(int64_t kind, const float* x, const float* up, float* y, int64_t rows,
                        int64_t size, int64_t x_stride, int64_t threads);

// Drops elements whose random byte is below the threshold.
int64_t weft_dropout(const float* x, float* y, int64_t count, int64_t seed, int64_t threshold,
                     float scale, int64_t threads);

int64_t weft_paged_attention(const WeftPagedAttention* call);

// is_backward 0: computes out, weights and lse. 1: computes dq, dk and dv from weights and dout.
int64_t weft_short_attention(const WeftShortAttention* call, int64_t is_backward);

int64_t weft_log_sum_exp(const float* logits, int64_t rows, int64_t size, int64_t stride,
                         double* sums, int64_t threads);

int64_t weft_top_k(const float* logits, int64_t rows, int64_t size, int64_t stride, int64_t k,
                   float* values, int64_t* ids, int64_t threads);

// Top-k and log-sum-exp of x W^T + bias; banned ids count in the sums only.
int64_t weft_linear_top_k(const WeftPackedMatrix* matrix, const float* x, const float* bias,
                          int64_t rows, int64_t x_stride, const int64_t* banned, int64_t num_banned,
                          int64_t k, float* values, int64_t* ids, double* sums, int64_t threads);

// The gradients overwrite the logits of both passes.
int64_t weft_rdrop_loss(float* p_logits, float* q_logits, const int64_t* targets, double* losses,
                        int64_t rows, int64_t size, float smoothing, float weight, int64_t threads);

// Copies the first rows of pages, in order: `copies` are triples of source page, target page, rows.
int64_t weft_copy_rows(char* pages, int64_t page_bytes, int64_t row_bytes, const int64_t* copies,
                       int64_t num);

// Outputs of the layers alternate between y and `other`; the last is in y.
int64_t weft_layers(const WeftPlacedLayer* layers, int64_t num, WeftLayerPass* const* passes,
                    const float* x, float* y, float* other);

// Returns the number of ids before the first that is out of range; all: the step was computed.
int64_t weft_decode_step(const WeftDecoder* decoder, const WeftDecodeStep* step);

// Returns the number of sequences that have ended; fewer than all: an id was out of range.
int64_t weft_greedy(const WeftDecoder* decoder, const WeftGreedy* call);

// ---- cffi: end

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
