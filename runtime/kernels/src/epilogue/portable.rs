//! The definitions. The choice of a function is made once per row, outside the loops.

use super::Unary;
use crate::math;

/// Calls `$each` with the function of `$kind`, so that every loop is compiled for one function.
macro_rules! with_function {
    ($kind:expr, |$f:ident| $each:expr) => {
        match $kind {
            Unary::Silu => {
                let $f = math::silu;
                $each
            }
            Unary::GeluTanh => {
                let $f = math::gelu_tanh;
                $each
            }
            Unary::GeluErf => {
                let $f = math::gelu_erf;
                $each
            }
            Unary::Relu => {
                let $f = math::relu;
                $each
            }
            Unary::Sigmoid => {
                let $f = math::sigmoid;
                $each
            }
            Unary::Tanh => {
                let $f = math::tanh;
                $each
            }
            Unary::Softplus => {
                let $f = math::softplus;
                $each
            }
            Unary::Exp => {
                let $f = math::exp;
                $each
            }
            Unary::Neg => {
                let $f = |x: f32| -x;
                $each
            }
        }
    };
}

#[inline(always)]
pub(crate) fn unary(kind: Unary, y: &mut [f32]) {
    with_function!(kind, |f| y.iter_mut().for_each(|y| *y = f(*y)));
}

#[inline(always)]
pub(crate) fn glu(kind: Unary, g: &[f32], u: &[f32], y: &mut [f32]) {
    let n = y.len();
    with_function!(kind, |f| zip(&g[..n], &u[..n], y, |g, u| f(g) * u));
}

#[inline(always)]
pub(crate) fn situ(g: &[f32], u: &[f32], beta: f32, linear: f32, y: &mut [f32]) {
    let gate = |g: f32| (beta * math::tanh(g / beta)) * math::sigmoid(g);
    if linear > 0.0 {
        zip(g, u, y, |g, u| gate(g) * (linear * math::tanh(u / linear)));
    } else {
        zip(g, u, y, |g, u| gate(g) * u);
    }
}

#[inline(always)]
pub(crate) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    zip(a, b, y, |a, b| a + b);
}

#[inline(always)]
pub(crate) fn mul(a: &[f32], b: &[f32], y: &mut [f32]) {
    zip(a, b, y, |a, b| a * b);
}

#[inline(always)]
pub(crate) fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    let x = &x[..y.len()];
    y.iter_mut().zip(x).for_each(|(y, x)| *y = a.mul_add(*x, *y));
}

#[inline(always)]
pub(crate) fn add_assign(y: &mut [f32], x: &[f32]) {
    let x = &x[..y.len()];
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

#[inline(always)]
fn zip(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    let n = y.len();
    for ((y, a), b) in y.iter_mut().zip(&a[..n]).zip(&b[..n]) {
        *y = f(*a, *b);
    }
}
