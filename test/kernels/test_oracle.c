/* Finite differences check every gradient of the oracle, element by element. Its forward passes, masks and update are
   those of the backend (test_ops, test_attention, test_update), which are HuggingFace's and PyTorch's (test_gpt,
   test_generation). */
#include <float.h>
#include "../oracle.h"
#include "../test.h"

static void fill(double *a, int count, double centre) {
    for (int i = 0; i < count; i++) a[i] = centre + uniform();
}
#define FILL(array, centre) fill(array, COUNT(array), centre)

/* ---- finite differences */

typedef struct { const char *name; double *value; const double *gradient; int count; } Variable;
#define VARIABLE(group, of) { #of, group.of, group.d##of, COUNT(group.of) }

/* (f(x + h) - f(x - h)) / 2h is wrong by h^2 f'''/6 and by the rounding of f, about DBL_EPSILON f/h. With
   h = DBL_EPSILON^(1/3) = 6e-6 both are near h^2 = 4e-11, times f'''/f' and f/f', which stay under 1e3 for the smooth
   functions and the values of order 1 used here. Against 1e3 h^2 = 4e-8 of the largest gradient, a wrong sign or a
   missing term is gross. */
static void check_gradients(const char *op, double (*f)(void), const Variable *variables, int variable_count) {
    const double h = cbrt(DBL_EPSILON), bound = 1e3 * h * h;
    for (const Variable *x = variables; x < variables + variable_count; x++) {
        double worst = 0, largest = 0;
        int at = 0;
        for (int i = 0; i < x->count; i++) {
            double value = x->value[i];
            x->value[i] = value + h;
            double above = f();
            x->value[i] = value - h;
            double below = f();
            x->value[i] = value;
            double error = fabs((above - below) / (2 * h) - x->gradient[i]);
            if (!(error <= worst)) { worst = error; at = i; }
            largest = fmax(largest, fabs(x->gradient[i]));
        }
        printf("  %s: d%-7s %4d elements, worst %.1e of the bound\n", op, x->name, x->count, worst / largest / bound);
        EXPECT(largest > 0 && worst <= bound * largest, "%s: d%s[%d] is off by %.2e, bound %.2e",
               op, x->name, at, worst, bound * largest);
    }
}
#define CHECK_GRADIENTS(op, f, ...) \
    check_gradients(op, f, (const Variable[]){__VA_ARGS__}, COUNT(((const Variable[]){__VA_ARGS__})))

/* Every f below is the sum of out * dout with a random dout: its gradients are what the backward pass returns. */
static double weighted(const double *out, const double *dout, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += out[i] * dout[i];
    return sum;
}

/* ---- the ops */

static struct { double wte[7 * 5], wpe[6 * 5], x[12 * 5], dx[12 * 5], dwte[7 * 5], dwpe[6 * 5]; } em;
static const int em_tokens[12] = {3, 0, 6, 3, 3, 1,  5, 3, 0, 0, 6, 3};      /* B=3, T=4, 2 and 4 never */
static double embedding(void) {
    oracle_embedding_forward(em.x, em_tokens, em.wte, em.wpe, 3, 4, 5);
    return weighted(em.x, em.dx, COUNT(em.x));
}
static void embedding_gradients(void) {
    FILL(em.wte, 0); FILL(em.wpe, 0); FILL(em.dx, 0);
    oracle_embedding_backward(em.dwte, em.dwpe, em.dx, em_tokens, 3, 4, 5, 7, 6);
    CHECK_GRADIENTS("embedding", embedding, VARIABLE(em, wte), VARIABLE(em, wpe));
}

static struct {
    double x[4 * 7], branch[4 * 7], weight[7], bias[7], sum[4 * 7], normed[4 * 7], mean[4], rstd[4];
    double dnormed[4 * 7], dx[4 * 7], dbranch[4 * 7], dweight[7], dbias[7];
} ln;
static double layernorm(void) {
    oracle_residual_layernorm_forward(ln.sum, ln.normed, ln.mean, ln.rstd, ln.x, ln.branch, ln.weight, ln.bias, 4, 7);
    return weighted(ln.normed, ln.dnormed, COUNT(ln.normed));
}
static void layernorm_gradients(void) {
    FILL(ln.x, 0.5); FILL(ln.branch, 0); FILL(ln.weight, 1); FILL(ln.bias, 0); FILL(ln.dnormed, 0);
    layernorm();
    oracle_layernorm_backward(ln.dx, ln.dweight, ln.dbias, ln.dnormed, ln.sum, ln.mean, ln.rstd, ln.weight, 4, 7);
    memcpy(ln.dbranch, ln.dx, sizeof ln.dx);      /* both only enter the sum */
    CHECK_GRADIENTS("layernorm", layernorm, VARIABLE(ln, x), VARIABLE(ln, branch),
                    VARIABLE(ln, weight), VARIABLE(ln, bias));
}

static struct {
    double x[4 * 5], weight[3 * 5], bias[3], out[4 * 3], dout[4 * 3], dx[4 * 5], dweight[3 * 5], dbias[3];
} mm;
static double matmul(void) {
    oracle_matmul_forward(mm.out, mm.x, mm.weight, mm.bias, 4, 3, 5);
    return weighted(mm.out, mm.dout, COUNT(mm.out));
}
static void matmul_gradients(void) {
    FILL(mm.x, 0); FILL(mm.weight, 0); FILL(mm.bias, 0); FILL(mm.dout, 0);
    oracle_matmul_backward(mm.dx, mm.dweight, mm.dbias, mm.dout, mm.x, mm.weight, 4, 3, 5);
    CHECK_GRADIENTS("matmul", matmul, VARIABLE(mm, x), VARIABLE(mm, weight),
                    VARIABLE(mm, bias));
}

static struct { double x[61], y[61], dy[61], dx[61]; } ge;
static double gelu(void) {
    oracle_gelu_forward(ge.y, ge.x, 61);
    return weighted(ge.y, ge.dy, 61);
}
static void gelu_gradients(void) {
    for (int i = 0; i < 61; i++) ge.x[i] = (i - 30) / 6.0 + 0.1 * uniform();
    FILL(ge.dy, 0);
    oracle_gelu_backward(ge.dx, ge.dy, ge.x, 61);
    CHECK_GRADIENTS("gelu", gelu, VARIABLE(ge, x));
}

static struct {
    double x[5 * 4], wte[9 * 4], losses[5], dx[5 * 4], dwte[9 * 4], unused_dx[5 * 4], unused_dwte[9 * 4];
} he;
static const int he_targets[5] = {2, -1, 0, 6, 2};      /* V=7 of Vp=9 */
static double head(void) {
    double total = 0;
    oracle_head_loss(he.losses, he.unused_dx, he.unused_dwte, he.x, he.wte, he_targets, 5, 4, 7, 9, 0);
    for (int r = 0; r < 5; r++) total += he.losses[r];
    return 0.3 * total;
}
static void head_gradients(void) {
    FILL(he.x, 0); FILL(he.wte, 0);
    oracle_head_loss(he.losses, he.dx, he.dwte, he.x, he.wte, he_targets, 5, 4, 7, 9, 0.3);
    CHECK_GRADIENTS("head", head, VARIABLE(he, x), VARIABLE(he, wte));
    EXPECT(he.losses[1] == 0, "%g", he.losses[1]);
}

enum { B = 2, NH = 3, HS = 4, TQ = 5, TK = 9, C = NH * HS };
static AttentionSpec spec = { .B = B, .Tq = TQ, .Tk = TK, .NH = NH, .HS = HS, .scale = 0.7f };
static struct {
    double q[B * TQ * C], k[B * TK * C], v[B * TK * C], out[B * TQ * C], lse[B * NH * TQ];
    double dout[B * TQ * C], dq[B * TQ * C], dk[B * TK * C], dv[B * TK * C];
} at;
static double attention(void) {
    oracle_attention_forward(&spec, at.out, at.lse, at.q, at.k, at.v);
    return weighted(at.out, at.dout, COUNT(at.out));
}
static void attention_gradients(void) {
    FILL(at.q, 0); FILL(at.k, 0); FILL(at.v, 0); FILL(at.dout, 0);
    static const uint64_t sequence = 1ull << 40;
    for (int q0 = 2 - TQ; q0 <= TK + 2; q0 += 2) {             /* from few keys seen to all; the last: not causal */
        spec.q0 = q0;
        spec.causal = q0 <= TK;
        spec.dropout = (Dropout){ .rate = q0 & 2 ? 0.25f : 0, .seed = 7, .site = 3, .sequence = &sequence };
        attention();
        oracle_attention_backward(&spec, at.dq, at.dk, at.dv, at.dout, at.lse, at.q, at.k, at.v);
        CHECK_GRADIENTS("attention", attention, VARIABLE(at, q), VARIABLE(at, k), VARIABLE(at, v));
    }
}

int main(void) {
    random_open();
    RUN(embedding_gradients);
    RUN(layernorm_gradients);
    RUN(matmul_gradients);
    RUN(gelu_gradients);
    RUN(head_gradients);
    RUN(attention_gradients);
    return test_close();
}
