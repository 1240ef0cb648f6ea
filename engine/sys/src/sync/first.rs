use std::sync::OnceLock;

/// A value of the process, for a static. The first thread that needs the value makes it.
///
/// No thread waits while another one makes the value, as it would in `OnceLock::get_or_init`: a child
/// of fork(2) does not have the thread that was making it, and would wait for ever. If several
/// threads are first, each makes a value, and one of the values stays. A thread waits only while
/// another one moves a complete value to its place, which takes nanoseconds: a fork in this time would
/// still leave a child that waits. To exclude this, too, the value would need memory of its own, and
/// the heap may be exhausted.
#[derive(Debug)]
pub struct First<T>(OnceLock<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> First<T> {
    /// Makes an empty place for the value.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the value, if a thread has made one. Async-signal-safe.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// Returns the value, which `make` makes if there is none. Allocates nothing itself.
    #[inline]
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.get().unwrap_or_else(|| self.publish(make()))
    }

    #[cold]
    fn publish(&self, value: T) -> &T {
        // Of several threads, one is first.
        let _ = self.0.set(value);
        self.get().expect("this thread or another one has set it")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// The situation after fork(2): the child does not have the first thread.
    #[test]
    fn value_is_made_while_another_thread_never_ends_making_it() {
        static VALUE: First<u32> = First::new();
        let (go_on, goes_on) = channel::<()>();
        let (makes, is_making) = channel();
        let slow = thread::spawn(move || {
            *VALUE.get_or_make(|| {
                makes.send(()).unwrap();
                goes_on.recv().unwrap();
                1
            })
        });
        is_making.recv().unwrap();
        assert_eq!(VALUE.get(), None);
        assert_eq!(*VALUE.get_or_make(|| 2), 2);
        go_on.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), 2, "the first value stays");
        assert_eq!(VALUE.get(), Some(&2));
    }
}
