//! One store for all inputs of a thread: its memory is populated once.

use std::cell::RefCell;

use kv_store::store::Store;

/// The least that a store takes.
const MEMORY: usize = 8 << 20;

thread_local! {
    static STORE: RefCell<Option<Store>> = const { RefCell::new(None) };
}

/// Has something done with an empty store.
pub(crate) fn with_store<T>(run: impl FnOnce(&mut Store) -> T) -> T {
    STORE.with_borrow_mut(|place| {
        let store = place.get_or_insert_with(|| Store::new(MEMORY).expect("a few MiB"));
        store.now = 0;
        store.clear();
        run(store)
    })
}

/// As [`with_store`], where the store itself is wanted.
pub(crate) fn lend_store<T>(run: impl FnOnce(Store) -> (Store, T)) -> T {
    STORE.with_borrow_mut(|place| {
        let mut store = place.take().unwrap_or_else(|| Store::new(MEMORY).expect("a few MiB"));
        store.clear();
        let (store, result) = run(store);
        *place = Some(store);
        result
    })
}
