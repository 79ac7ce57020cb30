// Copies the first rows of pages to other pages, in order (copy-on-write).
#include <cstring>

#include "simd.h"

namespace weft {

// Copy the first `rows` rows of page `source` to page `target`.
struct PageCopy {
  int64_t source, target, rows;
};

}  // namespace weft

EXPORT void weft_copy_rows(char* pages, int64_t page_bytes, int64_t row_bytes,
                           const weft::PageCopy* copies, int64_t num) {
  for (int64_t i = 0; i < num; i++)
    std::memcpy(pages + copies[i].target * page_bytes, pages + copies[i].source * page_bytes,
                copies[i].rows * row_bytes);
}
