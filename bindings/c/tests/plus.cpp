// The header in C++17: ownership by unique_ptr, threads, and an exception that must not cross the library.
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

namespace {

struct Free {
    void operator()(hugekit_pool *pool) const { hugekit_pool_free(pool); }
    void operator()(hugekit_region *region) const { hugekit_region_free(region); }
    void operator()(hugekit_pin *pin) const { hugekit_pin_free(pin); }
    void operator()(hugekit_snapshot *snapshot) const { hugekit_snapshot_free(snapshot); }
    void operator()(hugekit_view *view) const { hugekit_view_free(view); }
};

using Pool = std::unique_ptr<hugekit_pool, Free>;
using Region = std::unique_ptr<hugekit_region, Free>;
using Pin = std::unique_ptr<hugekit_pin, Free>;
using Snapshot = std::unique_ptr<hugekit_snapshot, Free>;
using View = std::unique_ptr<hugekit_view, Free>;

Pool base_pages(size_t capacity)
{
    hugekit_pool_options wishes{};
    wishes.size = sizeof wishes;
    wishes.backing = HUGEKIT_BACKING_BASE;
    hugekit_pool *pool = nullptr;
    CHECK(hugekit_pool_new(capacity, &wishes, &pool) == HUGEKIT_STATUS_OK);
    return Pool(pool);
}

void threads_share_a_pool()
{
    Pool pool = base_pages(16 << 20);
    std::vector<std::thread> threads;
    for (unsigned char mark = 1; mark <= 4; mark++) {
        threads.emplace_back([&pool, mark] {
            for (int round = 0; round < 20; round++) {
                hugekit_region *made = nullptr;
                CHECK(hugekit_region_new(pool.get(), 1 << 20, nullptr, &made) == HUGEKIT_STATUS_OK);
                Region region(made);
                auto *bytes = static_cast<unsigned char *>(hugekit_region_address(made));
                for (size_t at = 0; at < 1 << 20; at += 512)
                    CHECK(bytes[at] == 0);
                std::memset(bytes, mark, 1 << 20);
                CHECK(bytes[(1 << 20) - 1] == mark);
            }
        });
    }
    for (auto &thread : threads)
        thread.join();
}

// Whatever order they go in: the view outlives the snapshot, the pin the region.
void views_and_pins_own_what_they_need()
{
    Pool pool = base_pages(16 << 20);
    hugekit_region *made = nullptr;
    CHECK(hugekit_region_new(pool.get(), 4 << 20, nullptr, &made) == HUGEKIT_STATUS_OK);
    Region region(made);
    auto *bytes = static_cast<unsigned char *>(hugekit_region_address(made));
    std::memset(bytes, 1, 4 << 20);
    hugekit_pin *pinned = nullptr;
    CHECK(hugekit_region_pin(made, 0, 1 << 20, &pinned) == HUGEKIT_STATUS_OK);
    Pin pin(pinned);
    hugekit_snapshot *taken = nullptr;
    hugekit_status status = hugekit_region_snapshot(made, nullptr, &taken);
    if (status == HUGEKIT_STATUS_NOT_PERMITTED || status == HUGEKIT_STATUS_UNSUPPORTED)
        return;
    CHECK(status == HUGEKIT_STATUS_OK);
    Snapshot snapshot(taken);
    hugekit_view *shown = nullptr;
    CHECK(hugekit_snapshot_view(taken, &shown) == HUGEKIT_STATUS_OK);
    View view(shown);
    std::memset(bytes, 2, 4 << 20);
    snapshot.reset();
    region.reset();
    bytes[0] = 3;
    const void *there = nullptr;
    CHECK(hugekit_view_rebase(shown, bytes + (3 << 20), 1 << 20, &there) == HUGEKIT_STATUS_OK);
    for (size_t at = 0; at < 1 << 20; at++)
        CHECK(static_cast<const unsigned char *>(there)[at] == 1);
}

void throws(size_t, size_t, void *) { throw std::runtime_error("from a callback"); }

// The process ends; the exception is not seen on the other side, where no caller could say what was cleared.
void an_exception_in_a_callback_ends_the_process()
{
    pid_t child = fork();
    if (child == 0) {
        CHECK(freopen("/dev/null", "w", stderr));
        std::vector<unsigned char> bytes(1 << 20);
        hugekit_options wishes{};
        wishes.size = sizeof wishes;
        wishes.threads = 1;
        wishes.progress = throws;
        try {
            (void)hugekit_clear_with(bytes.data(), bytes.size(), &wishes, nullptr);
        } catch (...) {
            _exit(2);
        }
        _exit(3);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int take_throws(size_t, const void *, size_t, void *) { throw std::runtime_error("from a callback"); }

// The same where changes are given away.
void an_exception_while_changes_are_taken_ends_the_process()
{
    pid_t child = fork();
    if (child == 0) {
        CHECK(freopen("/dev/null", "w", stderr));
        std::vector<unsigned char> bytes(8 << 20, 7);
        hugekit_changes *changes = nullptr;
        hugekit_epoch *epoch = nullptr;
        if (hugekit_changes_first(bytes.data(), bytes.size(), nullptr, &changes) != HUGEKIT_STATUS_OK)
            std::abort();
        try {
            (void)hugekit_changes_write(changes, take_throws, nullptr, &epoch);
        } catch (...) {
            _exit(2);
        }
        _exit(3);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

}  // namespace

int main()
{
    threads_share_a_pool();
    views_and_pins_own_what_they_need();
    an_exception_in_a_callback_ends_the_process();
    an_exception_while_changes_are_taken_ends_the_process();
}
