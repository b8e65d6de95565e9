//! Real sockets: what arrives in pieces, who does not read, who says nothing, who comes when it is full, and the end.
//!
//! Nothing here measures time. What has to happen is waited for, by reads that the system ends if it does not.

mod abuse;
mod access;
mod admin;
mod binary;
mod clients;
mod conformance;
mod end;
mod envoy;
mod every_protocol;
mod grpc;
mod grpc_abuse;
mod grpc_client;
mod grpc_tls;
mod grpc_trouble;
mod http;
mod leases;
mod log;
mod malformed;
mod many_rules;
mod metrics;
mod openapi;
mod pipelines;
mod reload;
mod running;
mod shared;
mod shared_throttle;
mod shell;
mod sockets;
mod startup;
mod tls;
