//! # Bodies that hold permits
//!
//! A response is not over when its head is there: a slow body is work, and may be most of it. So the permits of a
//! request go with the body, and come back when it has ended, has failed, or was dropped because the client has gone.
//!
//! Whoever sends a body asks whether it has ended, and if so drops it without looking further; so a body that was dropped
//! may well have ended. A limit that learns from its endings has to know the one from the other.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use ::http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::gate::Permits;

pin_project! {
    /// A body with the permits of its request, until it has ended or is dropped.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        held: Held,
    }
}

/// The permits of a request, and how its work has ended when they are given back.
#[derive(Debug)]
struct Held {
    permits: Option<Permits>,
    status: StatusCode,
    /// Set by those who only look, too.
    has_ended: AtomicBool,
}

impl<B> PermitBody<B> {
    /// Of a response with this status, which may say that whoever did the work was overloaded.
    pub(super) fn new(inner: B, permits: Permits, status: StatusCode) -> Self {
        PermitBody { inner, held: Held::new(Some(permits), status) }
    }

    /// With nothing to hold.
    pub(super) fn without_permit(inner: B) -> Self {
        PermitBody { inner, held: Held::new(None, StatusCode::OK) }
    }

    /// The body. The permits are given back.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        PermitBody::without_permit(B::default())
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = this.inner.as_mut().poll_frame(cx);
        match &frame {
            Poll::Ready(None) => this.held.give_back(true),
            Poll::Ready(Some(Err(_))) => this.held.give_back(false),
            Poll::Ready(Some(Ok(_))) => this.held.note(this.inner.is_end_stream()),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.inner.is_end_stream();
        self.held.note(has_ended);
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Held {
    fn new(permits: Option<Permits>, status: StatusCode) -> Self {
        Held { permits, status, has_ended: AtomicBool::new(false) }
    }

    /// That there is nothing more to send. The permits stay until it has been sent.
    fn note(&self, has_ended: bool) {
        if has_ended {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }

    fn give_back(&mut self, has_ended: bool) {
        match self.permits.take() {
            Some(permits) if has_ended => end(permits, self.status),
            permits => drop(permits),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let has_ended = *self.has_ended.get_mut();
        self.give_back(has_ended);
    }
}

/// The work is done, with this status.
pub(super) fn end(permits: Permits, status: StatusCode) {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => permits.overloaded(),
        _ => permits.succeeded(),
    }
}
