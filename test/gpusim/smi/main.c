#include <stdio.h>
int main(int argc, char **argv) { (void)argc; (void)argv; printf("x\n"); return 0; }
