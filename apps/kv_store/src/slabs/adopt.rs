//! An arena whose bytes come from a file: nothing of them is believed.

use std::collections::BTreeSet;

use super::page::SIZES;
use super::{Kind, PAGE, SLAB, Slabs};
use crate::image::{Head, ImageError};

impl Slabs {
    /// All of the arena, to be overwritten by an image.
    pub fn image_mut(&mut self) -> &mut [u8] {
        self.watched.clear();
        &mut self.arena
    }

    /// What the arena says of itself.
    pub fn head(&self) -> Result<Head, ImageError> {
        let head = Head::read(&self.arena[..PAGE])?;
        let slabs = self.count as u64;
        if head.slabs != slabs {
            return Err(ImageError::Length { said: head.slabs, slabs });
        }
        if self.page(0).known_kind() != Some(Kind::Pages(self.first as u32)) {
            return Err(slab_error(0, "it does not say where the pages end"));
        }
        Ok(head)
    }

    /// Looks whether the pages can be gone by, and finds out by them what is free. Slabs of the index are free: it has to
    /// be made anew. Returns which rooms are taken: what is in them was not looked at.
    pub fn adopt(&mut self) -> Result<Vec<usize>, ImageError> {
        self.head()?;
        self.forget();
        let (mut rooms, mut slab) = (Vec::new(), self.first);
        while slab < self.count {
            slab += self.adopt_slab(slab, &mut rooms)?;
        }
        self.used = rooms.iter().map(|&offset| self.room_at(offset)).sum();
        Ok(rooms)
    }

    /// As if nothing were taken, whatever the pages say.
    fn forget(&mut self) {
        self.empty.clear();
        self.partial.iter_mut().for_each(BTreeSet::clear);
        self.high = self.first;
    }

    /// Returns how many slabs belong to this one, with itself.
    fn adopt_slab(&mut self, slab: usize, rooms: &mut Vec<usize>) -> Result<usize, ImageError> {
        let kind = self.page(slab).known_kind().ok_or(slab_error(slab, "of no known kind"))?;
        let slabs = match kind {
            Kind::Empty | Kind::Index => {
                self.set_word(slab, 0, 0);
                self.empty.insert(slab);
                return Ok(1);
            }
            Kind::Slots(size) => self.adopt_slots(slab, size, rooms).map(|()| 1)?,
            Kind::Large(slabs) => self.adopt_large(slab, slabs as usize, rooms)?,
            Kind::Rest => return Err(slab_error(slab, "it belongs to no other")),
            Kind::Pages(_) => return Err(slab_error(slab, "pages among entries")),
        };
        self.high = slab + slabs;
        Ok(slabs)
    }

    fn adopt_large(
        &mut self,
        slab: usize,
        slabs: usize,
        rooms: &mut Vec<usize>,
    ) -> Result<usize, ImageError> {
        if slabs == 0 || slabs > self.count - slab {
            return Err(slab_error(slab, "an entry without slabs, or beyond the end"));
        }
        let mut rest = slab + 1..slab + slabs;
        if !rest.all(|slab| self.page(slab).known_kind() == Some(Kind::Rest)) {
            return Err(slab_error(slab, "another slab is within its entry"));
        }
        rooms.push(slab * SLAB);
        Ok(slabs)
    }

    fn adopt_slots(
        &mut self,
        slab: usize,
        size: usize,
        rooms: &mut Vec<usize>,
    ) -> Result<(), ImageError> {
        let (page, slots) = (self.page(slab), SLAB / size);
        let taken: Vec<usize> = page.taken().collect();
        if taken.is_empty() || taken.len() != page.word(2) as usize {
            return Err(slab_error(slab, "it has not as many entries as it says"));
        }
        // Ascending, so that the last one is the farthest.
        if taken.last().is_some_and(|&slot| slot / size >= slots) {
            return Err(slab_error(slab, "an entry behind its last slot"));
        }
        let first_free =
            (0..slots).find(|&slot| taken.get(slot).is_none_or(|&at| at != slot * size));
        if page.word(3) as usize > first_free.unwrap_or(slots - 1) / 64 {
            return Err(slab_error(slab, "a free slot before the first one that it names"));
        }
        rooms.extend(taken.iter().map(|at| slab * SLAB + at));
        if first_free.is_some() {
            let class = SIZES.partition_point(|&other| other < size);
            self.partial[class].insert(slab);
        }
        Ok(())
    }
}

fn slab_error(slab: usize, what: &'static str) -> ImageError {
    ImageError::Slab { slab, what }
}
