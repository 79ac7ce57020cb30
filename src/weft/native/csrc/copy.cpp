// Copies the first rows of pages to other pages, in order (copy-on-write).
#include <cstring>

#include "abi.h"

int64_t weft_copy_rows(char* pages, int64_t page_bytes, int64_t row_bytes, const int64_t* copies,
                       int64_t num) {
  for (const int64_t* copy = copies; copy < copies + 3 * num; copy += 3)
    std::memcpy(pages + copy[1] * page_bytes, pages + copy[0] * page_bytes, copy[2] * row_bytes);
  return 0;
}
