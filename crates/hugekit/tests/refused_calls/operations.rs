//! The operations, each with a point within which calls are refused.

use hugekit::Pool;
use hugekit::pool::Backing;

use crate::case::{Operation, Point};

pub(crate) fn all() -> Vec<(String, Operation)> {
    let each: &[(&str, Operation)] = &[
        ("base::a_pool_is_built", |point| a_pool_is_built(point, Backing::Base)),
        ("thp::a_pool_is_built", |point| a_pool_is_built(point, Backing::Thp)),
        ("hugetlb::a_pool_is_built", |point| a_pool_is_built(point, Backing::Hugetlb2M)),
    ];
    each.iter().map(|&(name, operation)| (name.to_owned(), operation)).collect()
}

const FOLIOS: usize = 4;

fn a_pool_is_built(point: &Point, backing: Backing) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let built = point.refuse(|| builder.populate_now(true).build());
    let Some(pool) = point.unless_refused(built, hugekit::PoolError::class) else { return };
    let region = pool.region(backing.page_size()).unwrap();
    point.check(region.iter().all(|&byte| byte == 0), "not clean");
}
