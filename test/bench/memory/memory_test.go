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

package main

import "testing"

func TestParse(t *testing.T) {
	f, err := parse("Name:\thaulout\nVmPeak:\t 3 kB\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nThreads:\t9\n")
	if err != nil || f.peak != 2<<20 || f.resident != 1<<20 {
		t.Errorf("got %+v, %v", f, err)
	}
	if _, err := parse("Name:\thaulout\n"); err == nil {
		t.Error("no error for a text without sizes")
	}
}
