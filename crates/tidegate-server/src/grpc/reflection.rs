//! # What is spoken here
//!
//! Tools such as grpcurl ask a service which methods it has and what its messages look like. The files they are told
//! are those that the messages were generated of.

use bytes::Bytes;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::watch;

use super::generated::files::FILES;
use super::generated::messages::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use super::message::{Messages, framed};
use super::status::{Code, Status};

const SERVICES: [&str; 3] = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];

/// Answers each question as it comes, until there are no more.
pub(super) fn converse(
    mut messages: Messages,
    mut ending: watch::Receiver<bool>,
) -> Receiver<Result<Bytes, Status>> {
    let (tell, told) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let asked = tokio::select! {
                asked = messages.next::<ServerReflectionRequest>() => asked,
                _ = ending.wait_for(|is_ending| *is_ending) => return,
                () = tell.closed() => return,
            };
            let answer = match asked {
                Ok(Some(asked)) => Ok(framed(&answer(asked))),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let is_last = answer.is_err();
            if tell.send(answer).await.is_err() || is_last {
                return;
            }
        }
    });
    told
}

fn answer(asked: ServerReflectionRequest) -> ServerReflectionResponse {
    let mut answer = ServerReflectionResponse { valid_host: asked.host.clone(), ..Default::default() };
    let found = if asked.list_services.is_some() {
        let service = SERVICES.map(|name| ServiceResponse { name: name.to_owned() }).to_vec();
        answer.list_services_response = Some(ListServiceResponse { service });
        Ok(())
    } else if let Some(name) = &asked.file_by_filename {
        file(&mut answer, name, |(file, ..)| *file == name)
    } else if let Some(name) = &asked.file_containing_symbol {
        file(&mut answer, name, |(_, symbols, _)| symbols.contains(&name.as_str()))
    } else if let Some(name) = &asked.all_extension_numbers_of_type {
        let base_type_name = name.clone();
        let none = ExtensionNumberResponse { base_type_name, extension_number: Vec::new() };
        file(&mut ServerReflectionResponse::default(), name, |(_, symbols, _)| {
            symbols.contains(&name.as_str())
        })
        .map(|()| answer.all_extension_numbers_response = Some(none))
    } else if let Some(extension) = &asked.file_containing_extension {
        Err(Status::new(Code::NotFound, format!("{} has no extensions", extension.containing_type)))
    } else {
        Err(Status::new(Code::InvalidArgument, "nothing is asked; ask for `list_services`"))
    };
    answer.error_response = found
        .err()
        .map(|Status { code, message }| ErrorResponse { error_code: code as i32, error_message: message });
    answer.original_request = Some(asked);
    answer
}

type File = (&'static str, &'static [&'static str], &'static [u8]);

fn file(
    answer: &mut ServerReflectionResponse,
    name: &str,
    is_it: impl Fn(&File) -> bool,
) -> Result<(), Status> {
    let (.., descriptor) = FILES.iter().find(|file| is_it(file)).ok_or_else(|| {
        Status::new(Code::NotFound, format!("there is no {name:?}; `list_services` tells what there is"))
    })?;
    answer.file_descriptor_response =
        Some(FileDescriptorResponse { file_descriptor_proto: vec![descriptor.to_vec()] });
    Ok(())
}
