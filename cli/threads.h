#pragma once

// One thread for each core that this process may use.
int threads_default(void);
