//! Vector-quantised matrices and grouped ones: their decode and the ops that read them, worked out by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use waste_ir::{
    Inputs, Interp, Module, SourceId, Tensor, WeightId, decode_matrix, decode_weight, parse_module, verify,
};

/// Two experts of two rows of eight inputs. Entry c of stage s is c at place s and 0 elsewhere, so a row is its four entry numbers
/// times its scale.
fn coded() -> (Module, Vec<u8>) {
    let text = "module \"m\" arch=a ctx=1 vocab=1 {
        source @0 \"m\" bytes=8192 header=sha256:00
        sym T in 1..=8
        weight \"books\": f32[4, 64, 8] = bank f16 @0+0x0 += 0x400 * 4
        weight \"w\": vq4p[2, 2, 8] = records @0+0x1000 += 0x100 indices 0x10 scales 0xd0 books \"books\"
        graph @g(x: f32[T, 8], ids: i32[T, 1], p: f32[T, 1]) phase=legal {
            v0, v1, v2: i32[T], i32[6], i32[T] = expert_sort ids {experts=2}
            v3: lut4p_fixed24[T, 8] = lut_build x, w\"books\" {code=vq4p, tables=fixed24}
            v4: f32[T, 2] = expert_lut v3, w\"w\", v0, v1 {gather=true}
            v5: f32[T, 2] = expert_sum v4, p, v0, v2
            return y: v5
        }
    }";
    let mut bytes = vec![0; 8192];
    for (stage, entry) in (0..4).flat_map(|s| (0..64usize).map(move |c| (s, c))) {
        let at = stage * 0x400 + 2 * (8 * entry + stage);
        // A whole number below 64 in f16: nothing, or 2^e · (1 + m / 2^10).
        let bits = match entry.checked_ilog2() {
            None => 0,
            Some(e) => u16::try_from((e as usize + 15) << 10 | ((entry << 10 >> e) & 1023)).unwrap(),
        };
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    let rows = [[[1, 2, 3, 4], [0, 0, 0, 9]], [[5, 6, 7, 63], [8, 0, 1, 0]]];
    for (e, row, entries) in (0..2).flat_map(|e| (0..2).map(move |r| (e, r, rows[e][r]))) {
        let record = 0x1000 + e * 0x100;
        let [a, b, c, d]: [u32; 4] = entries;
        let word = (a | b << 6 | c << 12 | d << 18).to_le_bytes();
        bytes[record + 0x10 + 3 * row..][..3].copy_from_slice(&word[..3]);
        // Scales of 1, 2 for expert 0, and 0.5, 1 for expert 1.
        let scale: u16 = [[0x3c00, 0x4000], [0x3800, 0x3c00]][e][row];
        bytes[record + 0xd0 + 2 * row..][..2].copy_from_slice(&scale.to_le_bytes());
    }
    (parse_module(text).unwrap(), bytes)
}

type Read<'a> = dyn Fn(SourceId, u64, u64) -> Result<Vec<u8>, String> + 'a;

fn named(module: &Module, name: &str) -> WeightId {
    module.weights.iter().find(|it| it.1.name == name).unwrap().0
}

#[test]
fn a_record_is_decoded_through_its_books() {
    let (module, bytes) = coded();
    verify(&module).unwrap_or_else(|it| panic!("{}", it[0]));
    let read = |_, at: u64, len: u64| Ok(bytes[at as usize..][..len as usize].to_vec());
    let w = named(&module, "w");
    let second = [2.5, 3.0, 3.5, 31.5, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(decode_matrix(&module, w, 1, &read).unwrap(), second);
    let all = decode_weight(&module, w, &read).unwrap();
    assert_eq!(all[..4], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!((all[11], &all[16..]), (18.0, &second[..]));
    assert_eq!(decode_matrix(&module, w, 2, &read).unwrap_err(), "matrix 2 of 2");
    let short = |_, at: u64, len: u64| Ok(bytes[at as usize..][..len as usize - 1].to_vec());
    assert!(decode_matrix(&module, w, 0, &short).unwrap_err().contains("bytes, expected"));
}

#[test]
fn tables_multiply_the_matrix_of_each_pairs_expert() {
    let (module, bytes) = coded();
    let verified = verify(&module).unwrap();
    let read: &Read<'_> = &|_, at, len| Ok(bytes[at as usize..][..len as usize].to_vec());
    let source = |id| decode_weight(&module, id, read);
    let matrices = |id, e| decode_matrix(&module, id, e, read);
    let x = [1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    let ids = Tensor { shape: vec![2, 1], ..Tensor::ids(&[1, 0]) };
    let inputs = Inputs::default()
        .with("x", Tensor::matrix(8, x.to_vec()))
        .with("ids", ids)
        .with("p", Tensor::matrix(1, vec![1.0, 10.0]));
    // Token 0 by expert 1, token 1 by expert 0.
    let wanted = [40.5, 9.0, 60.0, 180.0];
    assert_eq!(Interp::new(verified, &source).run("g", &inputs).unwrap()["y"].f64s(), wanted);
    // One matrix at a time, and never the bank.
    let no_bank = |id| if id == named(&module, "w") { Err("asked for all".to_owned()) } else { source(id) };
    let mut interp = Interp::new(verified, &no_bank).with_matrices(&matrices);
    assert_eq!(interp.run("g", &inputs).unwrap()["y"].f64s(), wanted);
}

#[test]
fn codes_and_scales_of_a_bank_step_apart() {
    let text = "module \"m\" arch=a ctx=1 vocab=1 {
        source @0 \"m\" bytes=4096 header=sha256:00
        sym T in 1..=8
        weight \"w\": f32[2, 1, 3] = grouped q4g @0+0x0 += 0x40 scales 0x200 += 0x2
        graph @g(x: f32[2*T, 3]) phase=canonical {
            v0: f32[2*T, 1] = head_linear x, w\"w\"
            return y: v0
        }
    }";
    let module = parse_module(text).unwrap();
    verify(&module).unwrap_or_else(|it| panic!("{}", it[0]));
    let mut bytes = vec![0u8; 4096];
    bytes[..2].copy_from_slice(&[0x9a, 0x0f]);
    bytes[0x40..0x42].copy_from_slice(&[0x80, 0x01]);
    bytes[0x200..0x204].copy_from_slice(&[0x00, 0x3c, 0x00, 0x38]);
    let read = |_, at: u64, len: u64| Ok(bytes[at as usize..][..len as usize].to_vec());
    let found = decode_weight(&module, named(&module, "w"), &read).unwrap();
    assert_eq!(found, [2.0, 1.0, 7.0, -4.0, 0.0, -3.5]);
}
