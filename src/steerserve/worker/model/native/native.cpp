// What a pass does on a processor, for rows of bfloat16 or float32, computed in float32. Each row is computed by
// itself, in an order that depends on the row alone, so its bits depend neither on the other rows nor on the number of
// threads. Widths must be multiples of LANES, and dim a multiple of 2 * LANES, at most DIM.
//
// The functions that `Kernels` calls. Each header has one kind of work. They are compiled together, as this one file.

#include "attention.h"
#include "columns.h"
#include "draws.h"
#include "gates.h"
#include "layers.h"
#include "norms.h"
#include "products.h"
#include "prompts.h"

extern "C" {
void normalise_half(const void* rows, const void* norm, void* out, int64_t count, int64_t width, int threads) {
    normalise_all((const bfloat16*)rows, *(const Norm<bfloat16>*)norm, (bfloat16*)out, count, width, threads);
}
void normalise_single(const void* rows, const void* norm, void* out, int64_t count, int64_t width, int threads) {
    normalise_all((const float*)rows, *(const Norm<float>*)norm, (float*)out, count, width, threads);
}
void gate_half(const void* gates, const void* others, void* out, int64_t count, int64_t width, int64_t gates_step,
               int64_t others_step, int activation, int threads) {
    gate_all((const bfloat16*)gates, (const bfloat16*)others, (bfloat16*)out, count, width, gates_step, others_step,
             (Activation)activation, threads);
}
void gate_single(const void* gates, const void* others, void* out, int64_t count, int64_t width, int64_t gates_step,
                 int64_t others_step, int activation, int threads) {
    gate_all((const float*)gates, (const float*)others, (float*)out, count, width, gates_step, others_step,
             (Activation)activation, threads);
}
void multiply_half(const void* by, const void* rows, void* wide, const void* bias, void* out, int64_t count,
                   int threads) {
    multiply_all<bfloat16>({(const Weight*)by, (const bfloat16*)rows, (const bfloat16*)bias, (float*)wide,
                            (bfloat16*)out, count},
                           threads);
}
void multiply_single(const void* by, const void* rows, void* wide, const void* bias, void* out, int64_t count,
                     int threads) {
    multiply_all<float>({(const Weight*)by, (const float*)rows, (const float*)bias, (float*)wide, (float*)out, count},
                        threads);
}
void attend_prompts_half(const void* of, int threads) { attend_prompts((const Prompts<bfloat16>*)of, threads); }
void attend_prompts_single(const void* of, int threads) { attend_prompts((const Prompts<float>*)of, threads); }
void attend_half(const void* of, int threads) { attend_all((const Heads<bfloat16>*)of, threads); }
void attend_single(const void* of, int threads) { attend_all((const Heads<float>*)of, threads); }
void run_layer_half(const void* layer, const void* pass, const void* rows, void* out, int first, int last,
                    int threads) {
    run_layer(*(const Layer<bfloat16>*)layer, *(const Pass<bfloat16>*)pass, (const bfloat16*)rows, (bfloat16*)out,
              {first, last}, threads);
}
void run_layer_single(const void* layer, const void* pass, const void* rows, void* out, int first, int last,
                      int threads) {
    run_layer(*(const Layer<float>*)layer, *(const Pass<float>*)pass, (const float*)rows, (float*)out, {first, last},
              threads);
}
void peak_half(const void* rows, int64_t step, int64_t count, int64_t size, const float* temperatures, float* peaks,
               int64_t* tokens, float* scaled, int threads) {
    peak_all((const bfloat16*)rows, step, count, size, temperatures, peaks, tokens, scaled, threads);
}
void peak_single(const void* rows, int64_t step, int64_t count, int64_t size, const float* temperatures, float* peaks,
                 int64_t* tokens, float* scaled, int threads) {
    peak_all((const float*)rows, step, count, size, temperatures, peaks, tokens, scaled, threads);
}
void draw(const float* weights, int64_t size, void* draws, int64_t count, int threads) {
    draw_all(weights, size, (Draw*)draws, count, threads);
}
int has_pairs() { return HAS_PAIRS; }
int leaves_instructions() { return LEAVES_INSTRUCTIONS; }
void figures(const void* of, int threads) { measure_all(*(const Figures*)of, threads); }
}
