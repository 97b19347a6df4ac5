//! The definition.

use waste_plan::Scoring;

use super::RouteRule;
use crate::argmax::portable::argmax_f32;
use crate::math::sigmoid;
use crate::norm::portable::softmax;

/// Keeps a sum of scores that are all zero from dividing them.
const TINY: f32 = 1e-20;

#[inline(always)]
pub(crate) fn route_top_k(
    logits: &[f32],
    bias: Option<&[f32]>,
    rule: &RouteRule,
    scratch: &mut [f32],
    ids: &mut [i32],
    weights: &mut [f32],
) {
    let (experts, k) = (logits.len(), ids.len());
    assert!(k <= experts && weights.len() == k, "{k} of {experts} experts with {} weights", weights.len());
    let (ranking, scores) = scratch[..2 * experts].split_at_mut(experts);
    score(logits, rule.scoring, scores);
    ranking.copy_from_slice(scores);
    if let Some(bias) = bias {
        ranking.iter_mut().zip(&bias[..experts]).for_each(|(rank, bias)| *rank += bias);
    }
    if rule.groups > 1 {
        drop_groups(ranking, &mut scores[..rule.groups], rule.keep);
        // Some of them gave their place to the scores of the groups.
        score(logits, rule.scoring, scores);
    }
    for (j, weight) in weights.iter_mut().enumerate() {
        let (chosen, rest) = ids.split_at_mut(j);
        let id = next_best(ranking, chosen);
        ranking[id] = f32::NAN;
        rest[0] = i32::try_from(id).expect("an id for every expert");
        *weight = scores[id];
    }
    if rule.renorm && k > 1 {
        let sum = weights.iter().fold(0.0, |sum, w| sum + w) + TINY;
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= rule.scale);
}

/// Logits as scores.
#[inline(always)]
fn score(logits: &[f32], scoring: Scoring, scores: &mut [f32]) {
    match scoring {
        Scoring::Sigmoid => scores.iter_mut().zip(logits).for_each(|(score, x)| *score = sigmoid(*x)),
        Scoring::Softmax => {
            scores.copy_from_slice(logits);
            softmax(scores);
        }
    }
}

/// The best of a ranking in which NaNs are taken or never win; where nothing else is left, the lowest id not chosen.
#[inline(always)]
fn next_best(ranking: &[f32], chosen: &[i32]) -> usize {
    let id = argmax_f32(ranking).id;
    if !ranking[id].is_nan() {
        return id;
    }
    let is_free = |id: &usize| chosen.iter().all(|it| usize::try_from(*it) != Ok(*id));
    (0..ranking.len()).find(is_free).expect("fewer experts are chosen than there are")
}

/// Leaves −inf of the experts of all but the `keep` best groups.
#[inline(always)]
fn drop_groups(ranking: &mut [f32], scores: &mut [f32], keep: usize) {
    let (experts, groups) = (ranking.len(), scores.len());
    assert!(experts.is_multiple_of(groups), "{experts} experts in {groups} groups");
    let size = experts / groups;
    for (score, group) in scores.iter_mut().zip(ranking.chunks_exact(size)) {
        *score = two_best(group);
    }
    for _ in 0..keep {
        // A kept group has a NaN for its score, so that it does not win again.
        scores[argmax_f32(scores).id] = f32::NAN;
    }
    for (score, group) in scores.iter().zip(ranking.chunks_exact_mut(size)) {
        if !score.is_nan() {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The sum of the two best members of a group, −inf where there are not two numbers; of a group of one, that one.
#[inline(always)]
fn two_best(group: &[f32]) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &x in group {
        if x > best {
            (best, second) = (x, best);
        } else if x > second {
            second = x;
        }
    }
    let sum = if group.len() > 1 { best + second } else { best };
    if sum.is_nan() { f32::NEG_INFINITY } else { sum }
}
