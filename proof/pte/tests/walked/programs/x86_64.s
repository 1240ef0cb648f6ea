# The guest's program on x86-64; `x86_64.rs` says why it differs. It runs in ring 3. rsi points to the
# request, rbx is its address, rdx its value. The word for the code of a fault is 1 until the request is done.

walked_x86_64:
    mov qword ptr [rsi + 24], 1
    mov rax, [rsi]
    mov rbx, [rsi + 8]
    mov rdx, [rsi + 16]
    cmp eax, 1
    je .Lwalked_read
    cmp eax, 2
    je .Lwalked_write
    # The end, or another tree: up to the host.
    ud2
.Lwalked_read:
    mov rdx, [rbx]
    mov [rsi + 16], rdx
    jmp .Lwalked_done
.Lwalked_write:
    mov [rbx], rdx
.Lwalked_done:
    mov qword ptr [rsi + 24], 0
    add rsi, 40
    jmp walked_x86_64
walked_x86_64_end:
