//! The encoding of one entry of the toy device's log: the writes of one command.

use bytes::Bytes;
use headwater_ssd::command::ValueSource;

#[derive(Clone, Debug)]
pub(crate) enum ToyOp {
    Store(u8, Bytes, Bytes, u64),
    Delete(u8, Bytes),
    Clear(u8),
}

pub(crate) fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
    out.extend_from_slice(bytes);
}

fn get(bytes: &[u8], at: &mut usize) -> Option<Bytes> {
    let length = usize::try_from(le(bytes.get(*at..*at + 4)?)).ok()?;
    let taken = bytes.get(*at + 4..*at + 4 + length)?;
    *at += 4 + length;
    Some(Bytes::copy_from_slice(taken))
}

pub(crate) fn encode(ops: &[ToyOp]) -> Vec<u8> {
    let mut out = Vec::new();
    for op in ops {
        let (kind, namespace, key, value, expiry) = match op {
            ToyOp::Store(namespace, key, value, expiry) => (0, *namespace, &key[..], &value[..], *expiry),
            ToyOp::Delete(namespace, key) => (1, *namespace, &key[..], &[][..], 0),
            ToyOp::Clear(namespace) => (2, *namespace, &[][..], &[][..], 0),
        };
        out.extend_from_slice(&[kind, namespace]);
        out.extend_from_slice(&expiry.to_le_bytes());
        put(&mut out, key);
        put(&mut out, value);
    }
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Vec<ToyOp> {
    let (mut ops, mut at) = (Vec::new(), 0);
    while let Some(&[kind, namespace]) = bytes.get(at..at + 2) {
        let Some(expiry) = bytes.get(at + 2..at + 10).map(le) else {
            break;
        };
        at += 10;
        let (Some(key), Some(value)) = (get(bytes, &mut at), get(bytes, &mut at)) else {
            break;
        };
        ops.push(match kind {
            0 => ToyOp::Store(namespace, key, value, expiry),
            1 => ToyOp::Delete(namespace, key),
            _ => ToyOp::Clear(namespace),
        });
    }
    ops
}

/// Returns the bytes of a payload. Simulated clients pass bytes inline; the world maps no client memory.
pub(crate) fn bytes_of(value: ValueSource) -> Bytes {
    match value {
        ValueSource::Bytes(bytes) => bytes,
        ValueSource::Client(_) | ValueSource::Received { .. } => {
            panic!("a simulated client passes its bytes inline")
        }
    }
}
