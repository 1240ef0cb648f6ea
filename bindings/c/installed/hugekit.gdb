# hugekit serves memory in place by a handler of SIGBUS, and of SIGSEGV for forks on transparent huge pages: each signal
# is one fault that it has served, as a page fault is the kernel's. GDB would stop at all of them.
handle SIGBUS nostop noprint pass

define hugekit-faults
  if $argc == 1 && $_streq("$arg0", "show")
    handle SIGBUS SIGSEGV nostop print pass
  else
    if $argc == 1 && $_streq("$arg0", "stop")
      handle SIGBUS SIGSEGV stop print pass
    else
      handle SIGBUS SIGSEGV nostop noprint pass
    end
  end
end
document hugekit-faults
What GDB does at a fault that hugekit serves in place: hugekit-faults hide | show | stop.
SIGBUS is hidden as it is. SIGSEGV stops the program until you say "hugekit-faults hide", because it is what most
crashes are, too: only forks on transparent huge pages raise it.
end
