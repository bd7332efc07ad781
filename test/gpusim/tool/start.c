/*
 * Process entry. The compiler's own start file would bind to the newest
 * __libc_start_main of the build machine's libc, and the tool must start in images with
 * an older one; so must its calls to the loader.
 */
#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
#else
#error "unsupported machine"
#endif

extern int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, int (*init)(void), void (*fini)(void),
	void (*rtld_fini)(void), void *stack_end);
__asm__(".symver __libc_start_main, __libc_start_main@" BASE);

extern int main(int argc, char **argv);

static int run(int argc, char **argv, char **environment)
{
	(void)environment;
	return main(argc, argv);
}

static int nothing(void)
{
	return 0;
}

static void no_fini(void)
{
}

__attribute__((used, noreturn)) static void start_c(long *stack, void (*rtld_fini)(void))
{
	__libc_start_main(run, (int)stack[0], (char **)(stack + 1), nothing, no_fini, rtld_fini, stack);
	__builtin_trap();
}

#if defined(__x86_64__)
__asm__(".globl _start\n.type _start,@function\n_start:\n"
	"\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tmov %rdx, %rsi\n\tand $-16, %rsp\n\tcall start_c\n");
#else
__asm__(".globl _start\n.type _start,%function\n_start:\n"
	"\tmov x29, #0\n\tmov x30, #0\n\tmov x1, x0\n\tmov x0, sp\n\tbl start_c\n");
#endif
