// Memory that a thread reuses.
#pragma once
#include <cstddef>
#include <new>

namespace bandrank {

// Room for numbers, aligned to a cache line, that grows when asked for more. Its contents are undefined.
template <class Number>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    ~Buffer() { clear(); }

    Number* data() { return numbers; }

    // Room for `count` numbers; the contents are lost if it grows.
    Number* room(size_t count) {
        if (count > capacity) {
            clear();
            numbers = static_cast<Number*>(operator new(count * sizeof(Number), LINE));
            capacity = count;
        }
        return numbers;
    }

    void clear_if_large() {
        if (capacity > MOST_KEPT) clear();
    }

  private:
    static constexpr std::align_val_t LINE{64};
    static constexpr size_t MOST_KEPT = 1 << 20;  // numbers; some hundred rows of a wide layer need more

    void clear() {
        operator delete(numbers, LINE);
        numbers = nullptr;
        capacity = 0;
    }

    Number* numbers = nullptr;
    size_t capacity = 0;
};

}  // namespace bandrank
