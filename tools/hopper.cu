// Functions that the kernels of ablation.cu and contention.cu share. Everything is fp16, sums are fp32. A part
// is 64 x 64 numbers, with the swizzle of 128 bytes.

typedef unsigned long long u64;
typedef unsigned int u32;

__device__ __forceinline__ u32 at(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Make what threads wrote visible to TMA and `wgmma`.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Return the descriptor for `wgmma` of a swizzled block with rows of 128 bytes.
__device__ __forceinline__ u64 operand(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)1 << 16) | ((u64)64 << 32) | ((u64)1 << 62);
}

// x / (1 + exp(-2 u)), by two special instructions
__device__ __forceinline__ float fast_gelu(float x) {
  float power, reciprocal;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * __fmaf_rn(x * x, -0.10294324f, -2.3022082f)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + power));
  return x * reciprocal;
}
__device__ __forceinline__ u32 halves(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ float low(u32 both) {
  float f;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a; }" : "=f"(f) : "r"(both));
  return f;
}
__device__ __forceinline__ float high(u32 both) {
  float f;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b; }" : "=f"(f) : "r"(both));
  return f;
}

// A part is read and written by four warps, 16 rows each, 16 columns at a time, as `wgmma` leaves its sums.
__device__ __forceinline__ u32 of_lane(u32 part, int columns) {
  int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16, chunk = 2 * columns + lane / 16;
  return part + row * 128 + (chunk ^ (row & 7)) * 16;
}
__device__ __forceinline__ void read(u32 (&to)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// Keep the compiler from removing the code that computed this value.
__device__ __forceinline__ void need(u32 value, u64* somewhere) {
  if (value == 0x12345678) *(volatile u64*)somewhere = 0;
}
