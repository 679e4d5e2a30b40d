/* The first process of every pod sandbox: holds the namespaces open, reaps what is orphaned into a
 * shared process namespace, and ends when it is asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction leaving = {.sa_handler = leave};
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    if (sigaction(SIGINT, &leaving, 0) || sigaction(SIGTERM, &leaving, 0) ||
        sigaction(SIGCHLD, &reaping, 0))
        return 1;
    for (;;)
        pause();
}
