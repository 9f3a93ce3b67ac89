/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command docs writes pages of docs/ from the code: `docs metrics` what the server measures, `docs events` the events that it sends.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	pages := map[string]func(io.Writer, *source) error{"metrics": writeMetrics, "events": writeEvents}
	if len(os.Args) != 2 || pages[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: docs metrics|events, in the root of the repository")
		os.Exit(2)
	}
	code, err := readSource("pkg")
	if err == nil {
		err = pages[os.Args[1]](os.Stdout, code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}
