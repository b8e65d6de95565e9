//! # What goes back
//!
//! Messages, and then how the call ended. A call that fails before its first message is told so at once, in the head.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::Receiver;

use super::message::framed;
use super::status::Status;
use super::wire::Message;

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    /// One message; then that all is well.
    One(Bytes),
    /// As they come.
    Many(Receiver<Result<Bytes, Status>>),
    /// How it ended.
    Ending(Status),
    Nothing,
}

const ENCODINGS: HeaderName = HeaderName::from_static("grpc-accept-encoding");

impl Reply {
    pub(crate) fn one(message: &impl Message) -> Response<Reply> {
        response(Reply::One(framed(message)))
    }

    pub(crate) fn many(messages: Receiver<Result<Bytes, Status>>) -> Response<Reply> {
        response(Reply::Many(messages))
    }

    pub(crate) fn failed(status: &Status) -> Response<Reply> {
        let mut response = response(Reply::Nothing);
        status.write(response.headers_mut());
        response
    }

    /// To whoever does not speak gRPC.
    pub(crate) fn not_understood() -> Response<Reply> {
        let mut response = Response::new(Reply::Nothing);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        response
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Reply::Many(messages) = self {
            return match messages.poll_recv(cx) {
                Poll::Ready(Some(Ok(message))) => Poll::Ready(Some(Frame::data(message))),
                Poll::Ready(Some(Err(status))) => self.end(&status),
                Poll::Ready(None) => self.end(&Status::OK),
                Poll::Pending => Poll::Pending,
            };
        }
        match std::mem::replace(self, Reply::Nothing) {
            Reply::One(message) => {
                *self = Reply::Ending(Status::OK);
                Poll::Ready(Some(Frame::data(message)))
            }
            Reply::Ending(status) => self.end(&status),
            Reply::Many(_) | Reply::Nothing => Poll::Ready(None),
        }
    }

    fn end(&mut self, status: &Status) -> Poll<Option<Frame<Bytes>>> {
        *self = Reply::Nothing;
        let mut trailers = HeaderMap::with_capacity(2);
        status.write(&mut trailers);
        Poll::Ready(Some(Frame::trailers(trailers)))
    }
}

fn response(reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(ENCODINGS, HeaderValue::from_static("identity"));
    response
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().next(cx).map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default() // a length would be of no use: nobody but gRPC reads this
    }
}
