//! One app alone, for those who count instructions: `valgrind --tool=callgrind bench-http --alone …`.

use crate::apps::{App, Place, Visit, each};
use crate::inside::{LOADS, Load, serve};

/// Serves `n` requests under one of the loads, with the one of the apps that has this number.
pub(crate) fn serve_alone(place: Place, load: usize, app: usize, n: u64) {
    let Load { what, addresses, told, .. } = &LOADS[load];
    let mut alone = Alone { app, addresses: *addresses, n, seen: 0 };
    eprint!("{place:?}, {what}, ");
    each(place, *told, &mut alone);
}

struct Alone {
    app: usize,
    addresses: u32,
    n: u64,
    seen: usize,
}

impl Visit for Alone {
    fn app(&mut self, who: &'static str, app: impl App) {
        if self.seen == self.app {
            let passed = serve(&app, self.n, self.addresses, &mut 0);
            eprintln!("{who}: {passed} requests passed");
        }
        self.seen += 1;
    }
}
