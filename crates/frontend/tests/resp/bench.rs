//! Face and model in the hands of a test, turn by turn, on the test's own thread.

use crate::model::Model;
use headwater_frontend::resp::{RespConfig, RespFace};
use headwater_host::clock::{Nanos, UnixMillis};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};

/// Runs face and model by hand, so that a test can stop durability.
pub(crate) struct Bench {
    pub(crate) face: RespFace,
    pub(crate) model: Model,
    pub(crate) stream: TcpStream,
    pub(crate) turn: u64,
}

impl Bench {
    pub(crate) fn start() -> Self {
        let config =
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..RespConfig::default() };
        let face = RespFace::bind(config).unwrap();
        let stream = TcpStream::connect(face.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { face, model: Model::new(17, 1_000), stream, turn: 0 }
    }

    pub(crate) fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.turn += 3_000;
            self.face.poll(&mut self.model, Nanos(self.turn), UnixMillis(1_000_000));
        }
    }

    pub(crate) fn received(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 10_000];
        match self.stream.read(&mut buffer) {
            Ok(count) => buffer[..count].to_vec(),
            Err(_) => Vec::new(),
        }
    }

    /// Turns until so many bytes have come.
    pub(crate) fn wait_for(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..1_000_000 {
            self.turns(1);
            all.extend(self.received());
            if all.len() >= bytes {
                return all;
            }
        }
        panic!("{bytes} bytes never came");
    }
}
