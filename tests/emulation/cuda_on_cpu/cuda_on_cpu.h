// Compiles CUDA kernels with g++ and runs them on the CPU; included before the kernel's text. See README.md.
#pragma once
#define CUDA_ON_CPU
#include "async_copy.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "intrinsics.h"
#include "tensor_cores.h"
