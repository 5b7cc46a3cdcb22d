// The text that is decoded when none is given: some 800 words of plain English prose.
#pragma once

extern const char bench_text[];
