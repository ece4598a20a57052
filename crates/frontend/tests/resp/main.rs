//! Tests of the RESP front end over loopback sockets, with a model of the device.
#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test reports its location")]
#![expect(clippy::print_stderr, reason = "a seeded test prints its seed")]

mod behaviour;
mod bit_differences;
mod clients;
mod differential;
mod edge_cases;
mod harness;
mod kept_settings;
mod long_arguments;
mod misbehaving_clients;
mod model;
mod model_batches;
mod model_limits;
mod model_readers;
mod received_options;
mod received_values;
mod transaction_clears;
mod transaction_databases;
mod transaction_device;
mod transaction_differences;
mod transaction_listings;
mod transactions;
mod unread_replies;
mod wire;
