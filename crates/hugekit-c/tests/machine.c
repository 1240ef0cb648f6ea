/* Questions about the machine and the profile. */
#include <unistd.h>

#include "check.h"

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

    char *text = NULL;
    CHECK(hugekit_doctor(&text) == HUGEKIT_STATUS_OK);
    CHECK(text[0] == '{' && strstr(text, "\"hugekit-doctor/1\"") && strstr(text, "\"remedy\""));
    hugekit_string_free(text);
    hugekit_string_free(NULL);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_doctor(NULL), "NULL");
    return 0;
}
