//! # Bodies that hold permits
//!
//! A response is not finished when its head is ready: a slow body is work, and may be most of it. So the permits of a
//! request stay with the body. They are released when the body ends, fails, or is dropped because the client
//! disconnects.
//!
//! A server that finds `is_end_stream` true drops the body without polling it again, so a dropped body may be complete.
//! A limit that adapts to how requests end must distinguish the two cases.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use ::http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::gate::Permits;

pin_project! {
    /// A body that holds the permits of its request until it has ended or is dropped.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        held: HeldPermits,
    }
}

/// The permits of a request, and how its work has ended when they are released.
#[derive(Debug)]
struct HeldPermits {
    permits: Option<Permits>,
    status: StatusCode,
    /// Atomic, because `is_end_stream` sets it through a shared reference.
    has_ended: AtomicBool,
}

impl<B> PermitBody<B> {
    /// Holds the permits of a response with this status, which may report an overload.
    pub(super) fn new(inner: B, permits: Permits, status: StatusCode) -> Self {
        PermitBody { inner, held: HeldPermits::new(Some(permits), status) }
    }

    /// Holds no permits.
    pub(super) fn without_permits(inner: B) -> Self {
        PermitBody { inner, held: HeldPermits::new(None, StatusCode::OK) }
    }

    /// Returns the body, and releases the permits.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        PermitBody::without_permits(B::default())
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
            Poll::Ready(None) => this.held.release(true),
            Poll::Ready(Some(Err(_))) => this.held.release(false),
            Poll::Ready(Some(Ok(_))) => this.held.record_end(this.inner.is_end_stream()),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.inner.is_end_stream();
        self.held.record_end(has_ended);
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl HeldPermits {
    fn new(permits: Option<Permits>, status: StatusCode) -> Self {
        HeldPermits { permits, status, has_ended: AtomicBool::new(false) }
    }

    /// Notes that nothing more is to be sent.
    ///
    /// The permits are held until everything has been sent.
    fn record_end(&self, has_ended: bool) {
        if has_ended {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }

    fn release(&mut self, has_ended: bool) {
        match self.permits.take() {
            Some(permits) if has_ended => release_finished(permits, self.status),
            permits => drop(permits),
        }
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        let has_ended = *self.has_ended.get_mut();
        self.release(has_ended);
    }
}

/// Releases the permits of finished work; a status of 429 or 503 reports an overload.
pub(super) fn release_finished(permits: Permits, status: StatusCode) {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => permits.overloaded(),
        _ => permits.succeeded(),
    }
}
