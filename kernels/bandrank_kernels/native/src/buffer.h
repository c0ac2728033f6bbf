// Memory that a thread uses again and again.
#pragma once
#include <cstddef>
#include <new>

namespace bandrank {

// Room for numbers, from the start of a cache line on, that only grows. What is in it is undefined.
template <class Number>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    ~Buffer() { clear(); }

    Number* data() { return numbers; }

    // Room for so many; what there was before is lost if it grows.
    Number* room(size_t count) {
        if (count > capacity) {
            clear();
            numbers = static_cast<Number*>(operator new(count * sizeof(Number), LINE));
            capacity = count;
        }
        return numbers;
    }

    void clear_beyond(size_t count) {
        if (capacity > count) clear();
    }

  private:
    static constexpr std::align_val_t LINE{64};

    void clear() {
        operator delete(numbers, LINE);
        numbers = nullptr;
        capacity = 0;
    }

    Number* numbers = nullptr;
    size_t capacity = 0;
};

}  // namespace bandrank
