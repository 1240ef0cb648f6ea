//! What a program sees after `use hugekit::*`: its prelude is what it was.

use hugekit::*;

/// `Copy` is the prelude's trait, and no options of a copy.
fn twice<T: Copy>(value: T) -> [T; 2] {
    [value, value]
}

#[test]
fn no_name_of_the_library_hides_one_of_the_prelude() {
    assert_eq!(twice(7), [7, 7]);
    let mut bytes = [1; 3];
    ClearOptions::new().reuse(Reuse::None).run(&mut bytes).unwrap();
    CopyOptions::new().run(&mut bytes, &[7; 3]).unwrap();
    assert_eq!(bytes, [7; 3]);
}
