//! Tests of arguments that are longer than one read of the socket.

use crate::wire::{RespValue, TestNode, encode};
use std::collections::BTreeMap;
use std::net::TcpStream;

/// Sends bytes in pieces of random lengths, some of which arrive alone.
fn send_in_pieces(
    wire: &mut crate::wire::RespTestClient<TcpStream>,
    bytes: &[u8],
    random: &mut fastrand::Rng,
) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = [1, 30, 5_000, 20_000, 300_000][random.usize(0..5)];
        let (piece, left) = rest.split_at(random.usize(1..=length).min(rest.len()));
        wire.send(piece);
        rest = left;
        if random.u8(0..4) == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn pipelines_of_long_and_short_arguments_store_what_was_sent() {
    for seed in 0..12 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let node = TestNode::start(seed, 1_000);
        let mut wire = node.connect();
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut pipeline = Vec::new();
        let mut commands = 0;
        for _ in 0..40 {
            let mut arguments = vec![b"MSET".to_vec()];
            for _ in 0..random.usize(1..5) {
                let key = format!("key{}", random.u8(0..12)).into_bytes();
                let around = [10, 1_000, 16_384, 70_000, 400_000][random.usize(0..5)];
                let value: Vec<u8> = (0..around + random.usize(0..5)).map(|_| random.u8(..)).collect();
                arguments.extend([key, value]);
            }
            if random.bool() {
                arguments.truncate(3);
                arguments[0] = b"SET".to_vec();
            }
            for pair in arguments[1..].chunks(2) {
                expected.insert(pair[0].clone(), pair[1].clone());
            }
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            pipeline.extend(encode(&words));
            commands += 1;
        }
        send_in_pieces(&mut wire, &pipeline, &mut random);
        for _ in 0..commands {
            assert_eq!(wire.receive(), RespValue::Simple("OK".to_owned()), "seed {seed}");
        }
        for (key, value) in expected {
            let RespValue::Bulk(found) = wire.call(&[b"GET", &key]) else { panic!("seed {seed}: no value") };
            assert!(found == value, "seed {seed}: another value than was sent");
        }
    }
}
