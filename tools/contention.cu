// The work of one warp group while another one multiplies: contention.py compiles and times this kernel.
//
// In every SM the second warp group multiplies blocks of 64 rows by blocks of LEFT columns, and of RIGHT columns
// if that is not 0, for `steps` steps of 64 along K, from shared memory. If LEFT is 0, it multiplies nothing and
// waits for `steps` clocks. Until it is done, the first warp group repeats the work that BESIDE chooses:
//   BESIDE 0  nothing
//          1  reading shared memory, as it reads parts (ldmatrix)
//          2  writing shared memory (stmatrix)
//          3  exponentials
//          4  multiplications of fp32
//          5  finishing a part: it reads two addends, adds them, computes gelu, and stores the result, which
//             goes through shared memory, so that lanes have 16 bytes of a row each
//          6  as 5, and all warps of the group wait for one another, twice
// `found` gets three numbers for each SM: the clocks of the second warp group, how often the first one did its
// work, and the clocks of the first one. The values that are multiplied, finished and added do not matter here.

__device__ __forceinline__ void write(u32 to, const u32 (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
}

// Do the work of the first warp group once; `numbers` are in registers, 32 of a part.
__device__ __forceinline__ void do_once(u32 parts, float (&numbers)[4][8], uint4* results, u64* somewhere) {
#if BESIDE == 1
  u32 all = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 found[4];
    read(found, of_lane(parts + i % 2 * 8192, i / 2));
    all ^= found[0] ^ found[1] ^ found[2] ^ found[3];
  }
  need(all, somewhere);
#elif BESIDE == 2
  u32 zeros[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; i++) write(of_lane(parts + i % 2 * 8192, i / 2), zeros);
#elif BESIDE == 3 || BESIDE == 4
#pragma unroll
  for (int i = 0; i < 32; i++) {
#if BESIDE == 3
    asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(numbers[i / 8][i % 8]));
#else
    asm volatile("mul.rn.f32 %0, %0, 0f3F800001;" : "+f"(numbers[i / 8][i % 8]));
#endif
  }
#elif BESIDE >= 5
  u32 result[4][4];
#pragma unroll
  for (int columns = 0; columns < 4; columns++) {
    u32 first[4], second[4];
    read(first, of_lane(parts, columns));
    read(second, of_lane(parts + 8192, columns));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float left = numbers[columns][2 * i] + low(first[i]) + low(second[i]);
      float right = numbers[columns][2 * i + 1] + high(first[i]) + high(second[i]);
      result[columns][i] = halves(fast_gelu(left), fast_gelu(right));
    }
  }
  u32 staged = parts + 2 * 8192;
#pragma unroll
  for (int columns = 0; columns < 4; columns++) write(of_lane(staged, columns), result[columns]);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; i++) {  // a warp has 16 rows
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + i * 4 + lane / 8;
    uint4 eight;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w) : "r"(staged + row * 128 + (lane % 8 ^ row & 7) * 16) : "memory");
    results[(blockIdx.x * 64 + row) * 8 + lane % 8] = eight;
  }
  __syncwarp();
#endif
}

extern "C" __global__ void __launch_bounds__(384, 1)
contention(long long* found, uint4* results, int steps) {
  extern __shared__ char raw[];
  char* blocks = (char*)(((u64)raw + 1023) / 1024 * 1024);
  u32 of_a = at(blocks), of_b = of_a + 8192, parts = of_b + 256 * 128;
  __shared__ volatile int done, last;
  __shared__ u64 somewhere;
  if (threadIdx.x == 0) done = 0;
  for (int i = threadIdx.x; i < BYTES / 4; i += blockDim.x) ((u32*)blocks)[i] = 0x3c003800;
  show_to_copies();
  __syncthreads();
  int group = threadIdx.x / 128;
  long long begin = clock64();
  if (group == 2) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#if LEFT
    float left[LEFT / 2];
#pragma unroll
    for (int i = 0; i < LEFT / 2; i++) left[i] = 0;
#if RIGHT
    float right[RIGHT / 2];
#pragma unroll
    for (int i = 0; i < RIGHT / 2; i++) right[i] = 0;
#endif
    u64 x = operand(of_a), y = operand(of_b);
    begin = clock64();
    int rest = steps;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1
    do {
#pragma unroll
      for (int k = 0; k < 4; k++) multiply_add(left, x + 2 * k, y + 2 * k, rest % 64 > 0 || k > 0);
#if RIGHT
#pragma unroll
      for (int k = 0; k < 4; k++) multiply_add(right, x + 2 * k, y + 2 * k, rest % 64 > 0 || k > 0);
#endif
      asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" ::: "memory");
    } while (--rest);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < LEFT / 2; i++) {
      asm volatile("" : "+f"(left[i])::"memory");
      all ^= __float_as_uint(left[i]);
    }
#if RIGHT
#pragma unroll
    for (int i = 0; i < RIGHT / 2; i++) {
      asm volatile("" : "+f"(right[i])::"memory");
      all ^= __float_as_uint(right[i]);
    }
#endif
    need(all, &somewhere);
#else
    while (clock64() - begin < steps);
#endif
    long long end = clock64();
    if (threadIdx.x == 256) done = 1, found[3 * blockIdx.x] = end - begin;
  } else if (group == 1) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
    float numbers[4][8];
#pragma unroll
    for (int i = 0; i < 32; i++) numbers[i / 8][i % 8] = threadIdx.x + i;
    begin = clock64();
    int often = 0;
    bool is_done = BESIDE == 0;
    while (!is_done) {
      do_once(parts, numbers, results, &somewhere);
      often++;
#if BESIDE == 6  // so all warps see the same
      if (threadIdx.x == 128) last = done;
      asm volatile("bar.sync 1, 128;" ::: "memory");
      is_done = last;
      asm volatile("bar.sync 1, 128;" ::: "memory");
#else
      is_done = done;
#endif
    }
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) all ^= __float_as_uint(numbers[i / 8][i % 8]);
    need(all, &somewhere);
    long long end = clock64();
    if (threadIdx.x == 128) found[3 * blockIdx.x + 1] = often, found[3 * blockIdx.x + 2] = end - begin;
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  }
}
