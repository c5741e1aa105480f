// The parts of a fused product's work, alone and together: ablation.py compiles and times this kernel.
//
// An SM computes TILES tiles of BM x BN of A @ B, one after the other, in steps of 64 along K. One warp copies
// blocks of A [M, K] and B [N, K] into a ring of STAGES buffers. Another warp copies two addends, in parts of
// 64 x 64, into a ring of SLOTS buffers, those of the last tile first. A part is copied after the first STAGES
// steps, and PACE / 4 steps later for each part before it. Macros choose the work:
//   COPY      A and B are copied; without it nothing waits for them
//   MULTIPLY  two warp groups multiply each step as soon as it is copied, half of the tile's rows each
//   ADDENDS   addends are copied, and as many results are stored: without FIRST, the addends unchanged
//   FIRST     a third warp group adds the addends of all tiles, and finishes and stores all tiles but the
//             last one: gelu(0 + addend + addend), where the 0 stands for the sums of a product
//   LAST      0: nothing; 1: the warp groups that multiplied compute gelu of the last tile's sums, without
//             addends, as if the sums had begun with them; 2: they also store the result
// So the last tile is made of products without addends, and the other tiles of addends without products. The
// work is that of a fused product, except that no warp group waits for the sums of another one.

struct __align__(64) Map { char bytes[128]; };

#define REGS (BN / 2)                   // registers of a lane for the sums of 64 rows
#define BLOCKS (BM / 128)               // blocks of 64 rows for each warp group that multiplies
#define COLS (BN / 64)                  // parts of a tile side by side
#define PARTS (BM / 64 * COLS)          // parts of a tile
#define PART 8192                       // bytes of a part
#define MULTIPLIERS (MULTIPLY ? 2 : 0)  // warp groups that multiply
// Registers of a lane in each kind of warp group; together they fit into the SM's registers.
#define COPY_REGS "40"
#define FINISH_REGS "104"
#if FIRST
#define MULTIPLY_REGS "168"
#else
#define MULTIPLY_REGS "232"
#endif

__device__ __forceinline__ void make_barrier(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
}
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" ::"r"(at(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_in(const Map* map, int col, int row, u32 to, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(at(barrier)), "r"(col), "r"(row) : "memory");
}
// Copy in a part that leaves the L2 cache first.
__device__ __forceinline__ void bring(const Map* map, int col, int row, u32 to, u64* barrier) {
  asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], p; }" ::"r"(to), "l"(map), "r"(at(barrier)), "r"(col), "r"(row) : "memory");
}
__device__ __forceinline__ void copy_out(const Map* map, int col, int row, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1]; cp.async.bulk.commit_group;" ::"l"(map), "r"(from), "r"(col), "r"(row) : "memory");
}
__device__ __forceinline__ void wait_for_copies_out() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void write_gelu(u32 to, const float* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(halves(fast_gelu(x[0]), fast_gelu(x[1]))), "r"(halves(fast_gelu(x[2]), fast_gelu(x[3]))), "r"(halves(fast_gelu(x[4]), fast_gelu(x[5]))), "r"(halves(fast_gelu(x[6]), fast_gelu(x[7]))) : "memory");
}

// The first row and column of this unit's nth tile: tiles are numbered by groups of eight (of 128 rows).
__device__ __forceinline__ void place(int nth, int tiles_n, int& row, int& col) {
  int number = blockIdx.x + nth * gridDim.x, group = 1024 / BM;
  row = (number / (group * tiles_n) * group + number % group) * BM;
  col = number % (group * tiles_n) / group * BN;
}

extern "C" __global__ void __launch_bounds__(128 * (1 + MULTIPLIERS + FIRST), 1)
ablation(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map first,
           const __grid_constant__ Map second, const __grid_constant__ Map output, int tiles_n, int steps) {
  extern __shared__ char raw[];
  char* of_a = (char*)(((u64)raw + 1023) / 1024 * 1024);
  char* of_b = of_a + STAGES * BM * 128;
  char* of_parts = of_b + STAGES * BN * 128;
  __shared__ u64 full[STAGES], is_free[STAGES], there[SLOTS], is_finished[SLOTS], may_bring[SLOTS], last_begins;
  __shared__ volatile int asked_for;  // steps
  if (threadIdx.x == 0) {
    asked_for = COPY ? 0 : TILES * steps;
    for (int i = 0; i < STAGES; i++) make_barrier(full + i, 1), make_barrier(is_free + i, MULTIPLY ? 2 : 1);
    for (int i = 0; i < SLOTS; i++) make_barrier(there + i, 1), make_barrier(is_finished + i, 1), make_barrier(may_bring + i, 1);
    make_barrier(&last_begins, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int warp = threadIdx.x / 32, total = TILES * steps;

  if (warp < 4) {
#if MULTIPLY
    asm volatile("setmaxnreg.dec.sync.aligned.u32 " COPY_REGS ";");
#endif
    if (threadIdx.x % 32 == 0) {
      if (warp == 0 && COPY) {  // copies A and B
        int row, col;
        for (int done = 0; done < total; done++) {
          if (done % steps == 0) place(done / steps, tiles_n, row, col);
          int stage = done % STAGES;
          wait(is_free + stage, done / STAGES & 1 ^ 1);
          expect(full + stage, (BM + BN) * 128);
          for (int i = 0; i < BM; i += 128) copy_in(&a, done % steps * 64, row + i, at(of_a + stage * BM * 128 + i * 128), full + stage);
          copy_in(&b, done % steps * 64, col, at(of_b + stage * BN * 128), full + stage);
          asked_for = done + 1;
        }
      } else if (warp == 1 && COPY && !MULTIPLY) {  // gives buffers back that nobody multiplies
        for (int done = 0; done < total; done++) {
          wait(full + done % STAGES, done / STAGES & 1);
          arrive(is_free + done % STAGES);
        }
      } else if (warp == 2 && ADDENDS) {  // brings addends
        for (int done = 0; done < TILES * PARTS; done++) {
          int row, col, slot = done % SLOTS, part = done % PARTS;
          place((done / PARTS + TILES - 1) % TILES, tiles_n, row, col);
          while (asked_for < min(STAGES + done * PACE / 4, total)) __nanosleep(20);
          wait(may_bring + slot, done / SLOTS & 1 ^ 1);
          expect(there + slot, 2 * PART);
          row += part / COLS * 64, col += part % COLS * 64;
          bring(&first, col, row, at(of_parts + slot * 2 * PART), there + slot);
          bring(&second, col, row, at(of_parts + slot * 2 * PART + PART), there + slot);
        }
      } else if (warp == 3 && ADDENDS) {  // stores parts, and gives their buffers back
        for (int done = FIRST ? PARTS : 0; done < TILES * PARTS; done++) {
          int row, col, slot = done % SLOTS, part = done % PARTS;
          place((done / PARTS + TILES - 1) % TILES, tiles_n, row, col);
          wait((FIRST ? is_finished : there) + slot, (FIRST ? done / SLOTS - (PARTS - slot + SLOTS - 1) / SLOTS : done / SLOTS) & 1);
          if (LAST < 2 || done >= PARTS) {
            copy_out(&output, col + part % COLS * 64, row + part / COLS * 64, at(of_parts + slot * 2 * PART));
            wait_for_copies_out();
          }
          arrive(may_bring + slot);
        }
      }
    }
#if MULTIPLY
  } else if (warp < 12) {  // multiplies
    asm volatile("setmaxnreg.inc.sync.aligned.u32 " MULTIPLY_REGS ";");
    int group = warp / 4 - 1, done = 0;
    float sums[BLOCKS][REGS];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < REGS; j++) sums[i][j] = 0;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    do {
      int stage = done % STAGES;
      if (COPY) wait(full + stage, done / STAGES & 1);
      if (done == total - steps && threadIdx.x == 128) arrive(&last_begins);
      u64 x = operand(at(of_a + (stage * BM + group * BM / 2) * 128)), y = operand(at(of_b + stage * BN * 128));
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) multiply_add(sums[i], x + 512 * i + 2 * k, y + 2 * k, done % steps > 0 || k > 0);
      asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" ::: "memory");
      if (done > 0 && threadIdx.x % 128 == 0) arrive(is_free + (done - 1) % STAGES);
    } while (++done < total);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < REGS; j++) asm volatile("" : "+f"(sums[i][j])::"memory");
    u32 all = 0;
#if LAST == 0
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < REGS; j++) all ^= __float_as_uint(sums[i][j]);
#elif LAST == 1
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < REGS; j += 2) all ^= halves(fast_gelu(sums[i][j]), fast_gelu(sums[i][j + 1]));
#elif LAST == 2
    int row, col;
    place(TILES - 1, tiles_n, row, col);
    asm volatile("bar.sync 1, 256;" ::: "memory");  // nobody reads A any more
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int part = 0; part < COLS; part++) {
        u32 to = at(of_a + ((group * BLOCKS + i) * COLS + part) * PART);
#pragma unroll
        for (int columns = 0; columns < 4; columns++) write_gelu(of_lane(to, columns), sums[i] + 32 * part + 8 * columns);
        show_to_copies();
        asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory");
        if (threadIdx.x % 128 == 0) copy_out(&output, col + part * 64, row + (group * BLOCKS + i) * 64, to);
      }
    if (threadIdx.x % 128 == 0) wait_for_copies_out();
#endif
    need(all, full);
#endif
#if FIRST
  } else {  // adds to all tiles, finishes all but the last
    asm volatile("setmaxnreg.dec.sync.aligned.u32 " FINISH_REGS ";");
    float zero;
    asm volatile("mov.f32 %0, 0f00000000;" : "=f"(zero));  // which the compiler does not know
    for (int done = 0; done < TILES * PARTS; done++) {
      int slot = done % SLOTS;
      // tiles that are not the last are finished while the last is multiplied
      if (done == PARTS) wait(&last_begins, 0);
      wait(there + slot, done / SLOTS & 1);
      u32 part = at(of_parts + slot * 2 * PART);
      float x[4][8];
#pragma unroll
      for (int columns = 0; columns < 4; columns++) {
        u32 p[4], q[4];
        read(p, of_lane(part, columns));
        read(q, of_lane(part + PART, columns));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          x[columns][2 * i] = zero + low(p[i]) + low(q[i]);
          x[columns][2 * i + 1] = zero + high(p[i]) + high(q[i]);
        }
      }
      if (done < PARTS) {
        u32 all = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) all ^= __float_as_uint(x[i / 8][i % 8]);
        need(all, full);
      } else {
#pragma unroll
        for (int columns = 0; columns < 4; columns++) write_gelu(of_lane(part, columns), x[columns]);
        show_to_copies();
      }
      asm volatile("bar.sync 2, 128;" ::: "memory");
      if (threadIdx.x % 128 == 0) arrive((done < PARTS ? may_bring : is_finished) + slot);
    }
#endif
  }
}
