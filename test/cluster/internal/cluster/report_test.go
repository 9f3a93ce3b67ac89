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

package cluster

import (
	"os/exec"
	"testing"
)

func TestQuote(t *testing.T) {
	for _, word := range []string{"", "plain", "--a=b", "with blank", "it's", `$HOME`, "a;b", "`id`", "*"} {
		output, err := exec.Command("/bin/sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(output) != word {
			t.Errorf("got %q (%v) from the shell for %s, want %q", output, err, quote(word), word)
		}
	}
	if got := quote("--kubeconfig=/a/b.c"); got != "--kubeconfig=/a/b.c" {
		t.Errorf("got %s for a plain word, want the word", got)
	}
}
