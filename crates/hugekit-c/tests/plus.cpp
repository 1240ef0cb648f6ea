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
};

using Pool = std::unique_ptr<hugekit_pool, Free>;
using Region = std::unique_ptr<hugekit_region, Free>;

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

void throws(size_t, size_t, void *) { throw std::runtime_error("from a callback"); }

// The process ends; the exception is not seen on the other side, where nobody could say what was cleared.
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

}  // namespace

int main()
{
    threads_share_a_pool();
    an_exception_in_a_callback_ends_the_process();
}
