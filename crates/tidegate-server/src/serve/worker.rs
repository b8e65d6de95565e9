//! # A thread that answers
//!
//! It has a runtime of its own, so a connection is only ever touched here: nothing is handed to and fro, and the
//! buffers that connections share need no lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use tidegate::clock::Clock;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

use super::connection::{Connection, Scratch};
use super::socket::Socket;
use super::talk::Talk;
use super::turns;
use super::unfinished::Unfinished;
use super::watch::{Ticks, Told, Watched};
use super::{Counted, Guest, Settings, Speaks};
use crate::config::Protocol;
use crate::engine::meter::Meter;
use crate::grpc;
use crate::http;
use crate::resp::Session;

/// The other end of a thread.
#[derive(Debug)]
pub(crate) struct Worker<C> {
    guests: UnboundedSender<Guest<C>>,
    floor: Arc<Floor>,
    thread: JoinHandle<()>,
}

/// Who is there.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// With those who are on their way.
    open: AtomicUsize,
    /// Counts ticks.
    pub(crate) now: AtomicU64,
    /// How many have come.
    came: AtomicU64,
    /// Of all threads.
    pub(crate) unfinished: Arc<Unfinished>,
    watched: Mutex<HashMap<u64, Arc<Watched>>>,
}

thread_local! {
    /// The buffers of this thread's connections. Each has them for as long as it reads, answers and writes, and no longer.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

impl<C: Clock + Send + Sync + 'static> Worker<C> {
    pub(crate) fn start_all(settings: Settings) -> io::Result<Vec<Self>> {
        let unfinished = Arc::new(Unfinished::new(settings.unfinished));
        (0..settings.threads()).map(|number| Worker::start(settings, number, unfinished.clone())).collect()
    }

    fn start(settings: Settings, number: usize, unfinished: Arc<Unfinished>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let ((guests, arriving), floor) =
            (unbounded_channel(), Arc::new(Floor { unfinished, ..Floor::default() }));
        let name = format!("tidegate-{number}");
        let its_floor = floor.clone();
        let work = move || runtime.block_on(work(settings, arriving, &its_floor));
        let thread = std::thread::Builder::new().name(name).spawn(work)?;
        Ok(Worker { guests, floor, thread })
    }
}

impl<C> Worker<C> {
    /// How many are there.
    pub(crate) fn open(&self) -> usize {
        self.floor.open.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, guest: Guest<C>) {
        self.floor.open.fetch_add(1, Ordering::Relaxed);
        if self.guests.send(guest).is_err() {
            self.floor.open.fetch_sub(1, Ordering::Relaxed); // the thread has ended
        }
    }

    /// Lets all finish, and waits for them.
    pub(crate) fn end(self) {
        drop(self.guests);
        let _ = self.thread.join(); // if it panicked, its connections are gone too
    }
}

async fn work<C: Clock + Send + Sync + 'static>(
    settings: Settings,
    mut arriving: UnboundedReceiver<Guest<C>>,
    floor: &Arc<Floor>,
) {
    let ticks = Ticks::of(&settings);
    tokio::spawn(turns::give());
    let mut ticking = tokio::time::interval(ticks.tick);
    ticking.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            guest = arriving.recv() => match guest {
                Some(guest) => welcome(guest, floor),
                None => break,
            },
            _ = ticking.tick() => floor.tick(ticks),
        }
    }
    floor.tell_all(Told::Finish);
    let all_gone = async {
        while floor.open.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(settings.drain, all_gone).await; // who has not gone by then is left behind
}

fn welcome<C: Clock + Send + Sync + 'static>(guest: Guest<C>, floor: &Arc<Floor>) {
    let leaving = Leaving(floor.clone(), None, Present::new(&guest.speaks, guest.counted));
    let Ok((socket, peer)) = Socket::new(guest.stream) else { return };
    let watched = Arc::new(Watched::new(floor.now.load(Ordering::Relaxed)));
    let number = floor.came.fetch_add(1, Ordering::Relaxed);
    let leaving = leaving.watched_as(number, watched.clone());
    match guest.tls {
        None => greet(guest.speaks, socket, peer, watched, leaving),
        Some(tls) => {
            watched.stalled(floor.now.load(Ordering::Relaxed)); // who has come has to say hello in time
            tokio::spawn(async move {
                let Some(socket) = shake_hands(tls, socket, &watched).await else { return };
                watched.moved(leaving.0.now.load(Ordering::Relaxed));
                greet(guest.speaks, socket, peer, watched, leaving);
            });
        }
    }
}

/// `None` if the other side does not speak TLS, is not known, or is told to leave.
async fn shake_hands(tls: Arc<ServerConfig>, socket: Socket, watched: &Watched) -> Option<Socket> {
    let mut shaking = pin!(TlsAcceptor::from(tls).accept(socket));
    poll_fn(|cx| match watched.poll_told(cx) {
        Told::Nothing => shaking.as_mut().poll(cx).map(|stream| Some(Socket::Tls(Box::new(stream.ok()?)))),
        Told::Finish | Told::Leave => Poll::Ready(None),
    })
    .await
}

fn greet<C: Clock + Send + Sync + 'static>(
    speaks: Speaks<C>,
    socket: Socket,
    peer: String,
    watched: Arc<Watched>,
    leaving: Leaving,
) {
    match speaks {
        Speaks::Resp(service) => talk(Session::new(service, peer), socket, watched, leaving),
        Speaks::Http(service) => talk(http::Session::new(service), socket, watched, leaving),
        Speaks::Grpc(service) => call(service, socket, watched, leaving),
        Speaks::Admin(service) => talk(http::Session::new(service), socket, watched, leaving),
    }
}

fn call<C: Clock + Send + Sync + 'static>(
    service: Arc<grpc::Service<C>>,
    socket: Socket,
    watched: Arc<Watched>,
    leaving: Leaving,
) {
    let ticking = leaving.0.clone();
    let unfinished = ticking.unfinished.clone();
    let now = move || ticking.now.load(Ordering::Relaxed);
    tokio::spawn(async move {
        grpc::serve(service, socket, watched, unfinished, now).await;
        drop(leaving);
    });
}

fn talk<T: Talk + Send + 'static>(session: T, socket: Socket, watched: Arc<Watched>, leaving: Leaving) {
    let mut connection = Connection::new(socket, session, watched, leaving.0.clone());
    tokio::spawn(async move {
        std::future::poll_fn(|cx| SCRATCH.with_borrow_mut(|scratch| connection.poll(cx, scratch))).await;
        drop((connection, leaving));
    });
}

/// Takes a connection off the list, however it ends.
struct Leaving(Arc<Floor>, Option<u64>, #[expect(dead_code, reason = "counted until it is dropped")] Present);

/// Counts a connection for as long as it is there.
struct Present {
    meter: Arc<Meter>,
    protocol: Protocol,
    _counted: Option<Counted>,
}

impl Present {
    fn new<C: Clock>(speaks: &Speaks<C>, counted: Option<Counted>) -> Self {
        let (meter, protocol) = (speaks.meter().clone(), speaks.protocol());
        meter.door(protocol).came.fetch_add(1, Ordering::Relaxed);
        meter.door(protocol).open.fetch_add(1, Ordering::Relaxed);
        Present { meter, protocol, _counted: counted }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.meter.door(self.protocol).open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leaving {
    fn watched_as(mut self, id: u64, watched: Arc<Watched>) -> Self {
        self.0.watched().insert(id, watched);
        self.1 = Some(id);
        self
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(id) = self.1 {
            self.0.watched().remove(&id);
        }
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Floor {
    fn tick(&self, ticks: Ticks) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let watched = self.watched();
        watched
            .values()
            .filter(|watched| ticks.is_over(watched, now))
            .for_each(|watched| watched.tell(Told::Leave));
    }

    fn tell_all(&self, told: Told) {
        self.watched().values().for_each(|watched| watched.tell(told));
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<u64, Arc<Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
