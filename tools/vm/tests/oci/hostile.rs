use hugekit_testing::trials::Checks;
pub(crate) const CHECKS: Checks = &[];
