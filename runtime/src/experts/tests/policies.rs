//! What is kept: the policy, the simulator against the real cache, learned lists.

use super::super::policy::{Policy, below};
use super::*;

/// Steps whose experts follow Zipf's law within each layer, each layer with favourites of its own.
fn zipf(layers: u32, experts: u32, top_k: usize, tokens: usize, exponent: f64, seed: u64) -> Vec<Step> {
    let weights: Vec<f64> = (1..=experts).map(|rank| libm::pow(f64::from(rank), -exponent)).collect();
    let mut state = seed;
    let mut step = |layer: u32| {
        let mut chosen: Vec<u32> = Vec::new();
        while chosen.len() < top_k {
            let mut rest =
                below(&mut state, 1 << 30) as f64 / f64::from(1 << 30) * weights.iter().sum::<f64>();
            let rank = weights.iter().position(|it| {
                rest -= it;
                rest < 0.0
            });
            let expert = (rank.unwrap_or(0) as u32 * 7 + layer * 5) % experts;
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.sort_unstable();
        Step { layer, experts: chosen }
    };
    (0..tokens).flat_map(|_| 0..layers).map(&mut step).collect()
}

#[test]
fn the_victim_is_the_least_used_and_then_the_oldest() {
    let mut policy = Policy::new(3, 9, Eviction::Lfru);
    for (slot, record) in [(0, 5), (1, 6), (2, 7), (0, 5), (1, 6)] {
        policy.touch(slot, record);
    }
    assert_eq!(policy.victim(&[0, 1, 2]), Some(2));
    assert_eq!(policy.victim(&[0, 1]), Some(0));
    assert_eq!(policy.victim(&[1]), Some(1));
    assert_eq!(policy.victim(&[]), None);
    // What was read ahead counts as used, until something newer is.
    policy.place(2, 8);
    assert_eq!(policy.victim(&[0, 1, 2]), Some(2));
    // A score outlives eviction: record 5's third use beats record 6's second.
    policy.touch(2, 5);
    assert_eq!(policy.victim(&[1, 2]), Some(1));
    // Frequent long ago is less than used now.
    for _ in 0..200 {
        policy.touch(0, 0);
    }
    policy.touch(1, 1);
    assert_eq!(policy.victim(&[1, 2]), Some(2));
}

#[test]
fn a_sample_of_many_finds_a_low_rank() {
    let mut policy = Policy::new(1000, 1000, Eviction::Lru);
    for it in 0..1000 {
        policy.touch(it, it);
    }
    let all: Vec<u32> = (0..1000).collect();
    let ranks: Vec<u32> = (0..200).map(|_| policy.victim(&all).unwrap()).collect();
    // The least of 16 uniform numbers has mean 1/17 and is over one half once in 65,536 times.
    let mean = ranks.iter().sum::<u32>() / 200;
    assert!((30..90).contains(&mean) && ranks.iter().all(|it| *it < 600), "{mean} {ranks:?}");
    assert!(ranks.iter().any(|it| *it != ranks[0]), "one victim for ever");
}

#[test]
fn the_simulator_knows_the_extremes() {
    let steps = zipf(4, 32, 4, 100, 0.8, 7);
    let seen = {
        let mut seen: Vec<(u32, u32)> =
            steps.iter().flat_map(|it| it.experts.iter().map(|expert| (it.layer, *expert))).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len() as u64
    };
    for eviction in [Eviction::Lfru, Eviction::Lru] {
        let all = simulate(&steps, 4 * 32, eviction);
        assert_eq!(all, Simulated { requests: 1600, hits: 1600 - seen });
        assert_eq!(simulate(&steps, usize::MAX, eviction), all);
        assert_eq!(simulate(&steps, 0, eviction), Simulated { requests: 1600, hits: 0 });
        let rates: Vec<f64> = [1, 8, 16, 32, 64].map(|it| simulate(&steps, it, eviction).hit_rate()).to_vec();
        assert!(rates.is_sorted(), "{rates:?}");
        assert_eq!(simulate(&steps, 32, eviction), simulate(&steps, 32, eviction));
    }
    assert_eq!(simulate(&[], 3, Eviction::Lfru).hit_rate(), 0.0);
}

#[test]
fn frequency_beats_recency_where_a_token_needs_more_than_fits() {
    // 16 experts a token, room for 12: each record is evicted before its next use if only recency counts.
    let steps = zipf(4, 32, 4, 400, 1.2, 3);
    let (lfru, lru) = (simulate(&steps, 12, Eviction::Lfru), simulate(&steps, 12, Eviction::Lru));
    assert!(lru.hit_rate() + 0.1 < lfru.hit_rate(), "{lfru:?} {lru:?}");
}

#[test]
fn the_simulator_and_the_cache_agree() {
    const BYTES: usize = 4096;
    let (layers, experts, top_k) = (6, 48, 6);
    let folder = Folder::new("agree");
    let steps = zipf(layers, experts, top_k, 150, 1.0, 11);
    let path = folder.write("bank", &bank_bytes(experts, BYTES));
    let file: Arc<dyn ReadAt> = Arc::new(ExpertFile::open(&path, true).unwrap());
    for percent in [10, 25, 50] {
        let slots = (layers * experts * percent / 100) as usize;
        for eviction in [Eviction::Lfru, Eviction::Lru] {
            let banks = (0..layers).map(|it| bank(it, Arc::clone(&file), BYTES as u32, experts)).collect();
            let cache =
                ExpertCache::open(banks, ExpertCacheOptions { eviction, ..options(slots, 2) }).unwrap();
            for step in &steps {
                cache.prefetch(step.layer, &step.experts);
                for expert in &step.experts {
                    let found = cache.acquire(step.layer, *expert, &RUN).unwrap();
                    assert_eq!(found[..4], expert.to_le_bytes());
                }
            }
            let found = cache.counters();
            let predicted = simulate(&steps, slots, eviction);
            assert_eq!(found.hits + found.misses, predicted.requests);
            assert_eq!((found.reads, found.speculative_hits), (found.misses, 0));
            let (found, predicted) = (found.hit_rate(), predicted.hit_rate());
            assert!((found - predicted).abs() < 0.02, "{eviction:?}, {percent} %: {found} and {predicted}");
            // Recency alone finds next to nothing where a token needs more than fits.
            let is_small = eviction == Eviction::Lru && percent == 10;
            assert!(is_small || 0.05 < found && found < 0.95, "{found}: nothing to compare");
        }
    }
}

#[test]
fn a_learned_list_warms_the_next_cache() {
    let file = Shim::new(bank_bytes(8, 4096), 1);
    let first = open(&file, 4096, 8, options(3, 2));
    for expert in [5, 5, 5, 2, 2, 7, 0, 1, 1] {
        drop(first.acquire(1, expert, &RUN).unwrap());
    }
    let hot = first.hot();
    let hits = |list: &[Hot]| list.iter().map(|it| (it.expert, it.hits)).collect::<Vec<_>>();
    assert_eq!(hits(&hot), [(5, 3), (1, 2), (2, 2), (0, 1), (7, 1)]);

    for readers in [0, 1, 2] {
        let reads = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&reads);
        file.set(move |_, offset, _| {
            log.lock().unwrap().push(offset / 4096);
            None
        });
        let second = open(&file, 4096, 8, options(3, readers));
        let mut list: Vec<Hot> = hot.iter().copied().rev().collect();
        list.extend([Hot { layer: 9, expert: 0, hits: 99 }, Hot { layer: 1, expert: 8, hits: 99 }]);
        assert_eq!(second.warm(&list, &RUN).unwrap(), 3);
        let mut reads = reads.lock().unwrap().clone();
        if 0 < readers {
            reads.sort_unstable();
            assert_eq!(reads, [1, 2, 5]);
        } else {
            assert_eq!(reads, [5, 1, 2]);
        }
        for expert in [1, 2, 5] {
            assert!(second.peek(1, expert).is_some(), "expert {expert}");
            drop(second.acquire(1, expert, &RUN).unwrap());
        }
        drop(second.acquire(1, 5, &RUN).unwrap());
        let found = second.counters();
        assert_eq!((found.hits, found.warm_hits, found.misses), (4, 3, 0));
        assert_eq!(hits(&second.hot()), [(5, 2), (1, 1), (2, 1)], "what it used itself");
    }
}

#[test]
fn a_cancelled_warming_leaves_nothing_behind() {
    let file = Shim::new(bank_bytes(8, 4096), 1);
    let cache = open(&file, 4096, 8, options(4, 0));
    let list: Vec<Hot> = (0..8).map(|expert| Hot { layer: 1, expert, hits: 1 }).collect();
    assert!(matches!(cache.warm(&list, &AtomicBool::new(true)), Err(ExpertError::Cancelled)));
    assert_eq!(cache.counters().reads, 0);
    drop(cache.acquire(1, 0, &RUN).unwrap());
    assert_eq!(cache.counters().misses, 1);
}
