/* Says as whom it runs. It is a set-user-ID program in its image: with no-new-privileges, that bit
 * has no effect. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    printf("Effective uid: %d\n", (int)geteuid());
    return 0;
}
