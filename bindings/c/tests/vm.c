/* A running VM: saved, and forked. Its arguments are those of the example `guest` of hugekit-checkpoint. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void arguments_are_looked_at(int32_t pid, const char *api)
{
    hugekit_vm_options options = {.size = sizeof options, .reserved = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_vm_checkpoint(pid, api, "x", &options, NULL), "reserved");
    options = (hugekit_vm_options){.size = sizeof options, .previous_count = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_checkpoint(pid, api, "x", &options, NULL), "previous");
    options = (hugekit_vm_options){.size = sizeof options, .paused = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_checkpoint(pid, api, "x", &options, NULL), "paused");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_checkpoint(pid, NULL, "x", NULL, NULL), "api");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_checkpoint(pid, api, NULL, NULL, NULL), "output");
    CHECK_REFUSED(HUGEKIT_STATUS_SYSTEM, hugekit_vm_checkpoint(pid, "/nonexistent", "x", NULL, NULL), "connect to /nonexistent");
    CHECK(hugekit_last_errno() != 0);

    hugekit_vm_child child = {.api = "/nonexistent/api"};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_fork(pid, api, NULL, 1, NULL, NULL), "children");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_fork(pid, api, &child, 0, NULL, NULL), "0 children");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_fork(pid, api, &child, 1, NULL, NULL), "command");
    const char *const command[] = {"/nonexistent/firecracker", NULL};
    child.command = command;
    child.load = "[]";
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_fork(pid, api, &child, 1, NULL, NULL), "JSON object");
    child.load = NULL;
    CHECK(hugekit_vm_fork(pid, api, &child, 1, NULL, NULL) == HUGEKIT_STATUS_SYSTEM && child.program == 0);
}

static long bytes_of(const char *folder, const char *name)
{
    char path[4096];
    struct stat found;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &found) == 0 ? (long)found.st_size : -1;
}

static void a_vm_is_saved_and_then_its_changes(int32_t pid, const char *api, const char *folder)
{
    char full[4096], delta[4096];
    snprintf(full, sizeof full, "%s/full", folder);
    snprintf(delta, sizeof delta, "%s/delta", folder);
    hugekit_vm_report report = {.size = sizeof report};
    CHECK(hugekit_vm_checkpoint(pid, api, full, NULL, &report) == HUGEKIT_STATUS_OK);
    CHECK(report.paused_ns > 0 && report.paused_ns < report.complete_ns && report.delta_bytes == 0);
    CHECK(report.copied_bytes > 0 && report.copied_bytes <= report.memory_bytes && !report.stock_snapshot);
    CHECK(bytes_of(full, "memory") == (long)report.memory_bytes && bytes_of(full, "vmstate") > 0);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_checkpoint(pid, api, full, NULL, NULL), "exists");
    CHECK(hugekit_last_remedy()[0] != 0);

    const char *previous[] = {full};
    hugekit_vm_options options = {
        .size = sizeof options, .previous = previous, .previous_count = 1, .no_collapse = 1};
    CHECK(hugekit_vm_checkpoint(pid, api, delta, &options, &report) == HUGEKIT_STATUS_OK);
    CHECK((long)report.delta_bytes == bytes_of(delta, "memory.delta") && report.delta_bytes > 0);
    CHECK(report.delta_bytes < report.memory_bytes / 4 && report.collapse_ns == 0);
}

static void a_vm_has_children(int32_t pid, const char *api, const char *folder, const char *firecracker)
{
    char apis[2][4096];
    const char *commands[2][4];
    hugekit_vm_child children[2] = {0};
    for (int at = 0; at < 2; at++) {
        snprintf(apis[at], sizeof apis[at], "%s/child.%d", folder, at);
        const char *command[] = {firecracker, "--api-sock", apis[at], NULL};
        memcpy(commands[at], command, sizeof command);
        children[at] = (hugekit_vm_child){.command = commands[at], .api = apis[at]};
    }
    hugekit_vm_report report = {.size = sizeof report};
    CHECK(hugekit_vm_fork(pid, api, children, 2, NULL, &report) == HUGEKIT_STATUS_OK);
    CHECK(report.paused_ns > 0 && report.restored_ns > 0 && report.complete_ns >= report.restored_ns);
    CHECK(children[0].vmm != children[1].vmm && children[0].vmm == children[0].program);
    for (int at = 0; at < 2; at++) {
        int status = 0;
        CHECK(waitpid(children[at].program, &status, WNOHANG) == 0);
        CHECK(kill(children[at].vmm, SIGKILL) == 0);
        CHECK(waitpid(children[at].program, &status, 0) == children[at].program && WIFSIGNALED(status));
    }
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_vm_fork(pid, api, children, 2, NULL, NULL), "exists");
}

int main(int count, char **arguments)
{
    CHECK(count == 5);
    int32_t pid = (int32_t)atoi(arguments[1]);
    arguments_are_looked_at(pid, arguments[2]);
    a_vm_is_saved_and_then_its_changes(pid, arguments[2], arguments[3]);
    a_vm_has_children(pid, arguments[2], arguments[3], arguments[4]);
    return 0;
}
