//! Progress callbacks of Python.

use std::sync::{Mutex, PoisonError};

use hugekit::{Cancel, Threads};
use hugekit_bulk::parallel::Done;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Raised;
use crate::numbers::Number;

/// The receiver of progress: a function of the bytes done and of all bytes, or a progress bar such
/// as tqdm's, whose `update` gets increments.
pub(crate) struct Teller {
    object: Option<Py<PyAny>>,
    is_bar: bool,
    told: Mutex<Told>,
    cancel: Cancel,
}

#[derive(Default)]
struct Told {
    done: usize,
    /// The exception that the callback raised: the work is cancelled then.
    raised: Option<PyErr>,
}

impl Teller {
    pub(crate) fn new(object: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let is_bar = object.map_or(Ok(false), |object| object.hasattr("update"))?;
        if let Some(object) = object.filter(|object| !is_bar && !object.is_callable()) {
            let message = format!(
                "progress is {}, and can be a function of (done, total), or a bar with update, such as tqdm's",
                object.repr()?
            );
            return Err(PyValueError::new_err(message));
        }
        let object = object.map(|object| object.clone().unbind());
        Ok(Self { object, is_bar, told: Mutex::default(), cancel: Cancel::new() })
    }

    /// Returns the flag that stops the work after the callback has raised an exception.
    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.object.is_none()
    }

    /// Reports the progress to the receiver. Any thread may call this; calls do not overlap.
    pub(crate) fn tell(&self, done: usize, total: usize) {
        let Some(object) = &self.object else { return };
        if self.cancel.is_cancelled() {
            return;
        }
        let before = std::mem::replace(&mut self.told().done, done);
        let answer = Python::attach(|py| {
            let object = object.bind(py);
            if !self.is_bar {
                object.call1((done, total))?;
            } else {
                let total_of_bar = object.getattr_opt("total")?;
                if before == 0 && total_of_bar.is_some_and(|total| total.is_none()) {
                    object.setattr("total", total)?;
                }
                object.call_method1("update", (done.saturating_sub(before),))?;
            }
            py.check_signals()
        });
        if let Err(error) = answer {
            self.told().raised = Some(error);
            self.cancel.cancel();
        }
    }

    /// Like [`tell`](Self::tell). Without a callback it checks for Ctrl-C, which raises an
    /// exception too.
    pub(crate) fn tell_or_look(&self, done: usize, total: usize) {
        if !self.is_silent() {
            return self.tell(done, total);
        }
        let looked = Python::attach(|py| -> PyResult<()> {
            py.check_signals()?;
            Ok(())
        });
        if let Err(error) = looked {
            self.told().raised = Some(error);
            self.cancel.cancel();
        }
    }

    /// Returns the result of the work, or the exception that the callback raised.
    pub(crate) fn result<T, E: Into<PyErr>>(&self, result: Result<T, E>) -> PyResult<T> {
        match self.told().raised.take() {
            Some(raised) => Err(raised),
            None => result.map_err(Into::into),
        }
    }

    /// Like [`result`](Self::result). The callback's exception lists the bytes that were done
    /// before it.
    pub(crate) fn result_or_done<T, E>(
        &self,
        py: Python<'_>,
        result: Result<T, E>,
        done: impl Fn(&E) -> Option<&Done>,
    ) -> PyResult<T>
    where
        Raised: From<E>,
    {
        let ranges = result.as_ref().err().and_then(done).map(Done::ranges).unwrap_or_default();
        let ranges: Vec<_> = ranges.iter().map(|range| (range.start, range.end)).collect();
        self.result(result.map_err(Raised::from)).inspect_err(|raised| {
            // An exception whose class has no room for it goes without.
            let _ = raised.value(py).setattr("hugekit_done", ranges);
        })
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts Python's number of threads. `None` means as many threads as are useful.
pub(crate) fn threads(number: Option<Number>) -> Threads {
    number.map_or(Threads::Auto, |Number(number)| Threads::Exactly(number))
}
