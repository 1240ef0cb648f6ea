/* Questions about the machine and the profile. */
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

/* What operations learned is gone by, forgotten, and not gone by while it is off: names are all that C sees of it. */
static void what_was_learned_is_gone_by_and_forgotten(void)
{
    size_t len = (size_t)96 << 20;
    char *memory = malloc(len);
    CHECK(memory);
    memset(memory, 1, len);
    hugekit_set_learning(0);
    const char *built_in = hugekit_clear_routine(len);
    CHECK(hugekit_clear(memory, len) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_clear_routine(len) == built_in);
    hugekit_set_learning(1);
    CHECK(hugekit_clear(memory, len) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_clear_routine(len)[0] != 0);
    for (size_t i = 0; i < len; i += 4096)
        CHECK(memory[i] == 0);
    hugekit_forget_learned();
    CHECK(hugekit_clear_routine(len) == built_in);
    free(memory);
}

int main(void)
{
    hugekit_machine machine = {.size = sizeof machine};
    CHECK(hugekit_machine_query(&machine) == HUGEKIT_STATUS_OK);
    CHECK(machine.size == sizeof machine);
    CHECK(machine.page_size == (size_t)sysconf(_SC_PAGESIZE));
    CHECK(machine.allowed_cpus >= 1 && machine.nodes >= 1);
    CHECK(machine.memory_available > 0 && machine.memory_available <= machine.memory_total);
    CHECK(machine.huge_2m_free <= machine.huge_2m_total);
    CHECK(machine.userfaultfd <= HUGEKIT_USERFAULTFD_ALL_FAULTS);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_machine_query(NULL), "hugekit_machine");
    machine.size = 8;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_machine_query(&machine), "size");

    hugekit_profile profile = {.size = sizeof profile};
    CHECK(hugekit_profile_query(&profile) == HUGEKIT_STATUS_OK);
    CHECK(profile.min_chunk > 0 && profile.thread_cap >= 1 && profile.near_bytes > 0);
    CHECK(hugekit_clear_routine(64)[0] != 0 && hugekit_copy_routine((size_t)1 << 30)[0] != 0);
    what_was_learned_is_gone_by_and_forgotten();

    char *text = NULL;
    CHECK(hugekit_doctor(&text) == HUGEKIT_STATUS_OK);
    CHECK(text[0] == '{' && strstr(text, "\"hugekit-doctor/1\"") && strstr(text, "\"remedy\""));
    hugekit_string_free(text);
    hugekit_string_free(NULL);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_doctor(NULL), "NULL");
    return 0;
}
