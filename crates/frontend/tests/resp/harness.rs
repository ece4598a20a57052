//! A harness that runs a front end and the model turn by turn on the test's own thread.

use crate::model::KvDeviceModel;
use headwater_frontend::resp::{RespConfig, RespFrontEnd};
use headwater_host::clock::{Nanos, UnixMillis};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};

/// A front end, a model and one client, run by the test, so that it can delay durability.
pub(crate) struct RespHarness {
    pub(crate) front_end: RespFrontEnd,
    pub(crate) model: KvDeviceModel,
    pub(crate) stream: TcpStream,
    pub(crate) turn: u64,
}

impl RespHarness {
    pub(crate) fn start() -> Self {
        let config =
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..RespConfig::default() };
        let front_end = RespFrontEnd::bind(config).unwrap();
        let stream = TcpStream::connect(front_end.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { front_end, model: KvDeviceModel::new(17, 1_000), stream, turn: 0 }
    }

    pub(crate) fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.turn += 3_000;
            self.front_end.poll(&mut self.model, Nanos(self.turn), UnixMillis(1_000_000));
        }
    }

    pub(crate) fn received(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 10_000];
        match self.stream.read(&mut buffer) {
            Ok(count) => buffer[..count].to_vec(),
            Err(_) => Vec::new(),
        }
    }

    /// Runs turns until the client has received so many bytes.
    pub(crate) fn wait_for(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..1_000_000 {
            self.turns(1);
            all.extend(self.received());
            if all.len() >= bytes {
                return all;
            }
        }
        panic!("the client did not receive {bytes} bytes");
    }
}
