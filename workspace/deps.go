package workspace

// A Dependency is how what a workspace depends on is installed: by which tool, and
// which file says so.
type Dependency struct {
	Manager string `json:"manager"`
	File    string `json:"file"`
	Command string `json:"command"` // for a POSIX shell, in the workspace; of no name that the workspace chose
	Bin     string `json:"bin,omitempty"`
}

// managers are what is looked for. Of those of one language the first counts: a
// lock file before what it was made from.
var managers = [...]struct {
	language string
	Dependency
}{
	{"node", Dependency{Manager: "npm", File: "package-lock.json", Command: "npm ci --no-audit --no-fund"}},
	{"node", Dependency{Manager: "npm", File: "npm-shrinkwrap.json", Command: "npm ci --no-audit --no-fund"}},
	{"node", Dependency{Manager: "pnpm", File: "pnpm-lock.yaml", Command: "pnpm install --frozen-lockfile"}},
	{"node", Dependency{Manager: "yarn", File: "yarn.lock", Command: "yarn install --immutable || yarn install --frozen-lockfile"}},
	{"node", Dependency{Manager: "bun", File: "bun.lock", Command: "bun install --frozen-lockfile"}},
	{"node", Dependency{Manager: "bun", File: "bun.lockb", Command: "bun install --frozen-lockfile"}},
	{"node", Dependency{Manager: "npm", File: "package.json", Command: "npm install --no-audit --no-fund"}},

	{"python", Dependency{Manager: "uv", File: "uv.lock", Command: "uv sync --frozen", Bin: ".venv/bin"}},
	{"python", Dependency{Manager: "poetry", File: "poetry.lock", Command: "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction", Bin: ".venv/bin"}},
	{"python", Dependency{Manager: "pipenv", File: "Pipfile.lock", Command: "PIPENV_VENV_IN_PROJECT=1 pipenv sync", Bin: ".venv/bin"}},
	{"python", Dependency{Manager: "conda", File: "environment.yml", Command: "conda env create -q -p ./.conda -f environment.yml", Bin: ".conda/bin"}},
	{"python", Dependency{Manager: "conda", File: "environment.yaml", Command: "conda env create -q -p ./.conda -f environment.yaml", Bin: ".conda/bin"}},
	{"python", Dependency{Manager: "pip", File: "requirements.txt", Command: venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt", Bin: ".venv/bin"}},
	{"python", Dependency{Manager: "pip", File: "pyproject.toml", Command: venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -e .", Bin: ".venv/bin"}},
	{"python", Dependency{Manager: "pip", File: "setup.py", Command: venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -e .", Bin: ".venv/bin"}},

	{"go", Dependency{Manager: "go", File: "go.mod", Command: "go mod download"}},
	{"rust", Dependency{Manager: "cargo", File: "Cargo.lock", Command: "cargo fetch --locked"}},
	{"rust", Dependency{Manager: "cargo", File: "Cargo.toml", Command: "cargo fetch"}},
	{"java", Dependency{Manager: "maven", File: "pom.xml", Command: "mvn -B -q dependency:go-offline"}},
	{"java", Dependency{Manager: "gradle", File: "build.gradle", Command: "gradle -q --no-daemon dependencies"}},
	{"java", Dependency{Manager: "gradle", File: "build.gradle.kts", Command: "gradle -q --no-daemon dependencies"}},
	{"ruby", Dependency{Manager: "bundler", File: "Gemfile", Command: "BUNDLE_PATH=vendor/bundle bundle install"}},
	{"php", Dependency{Manager: "composer", File: "composer.json", Command: "composer install --no-interaction --no-progress"}},
	{"elixir", Dependency{Manager: "mix", File: "mix.exs", Command: "mix deps.get"}},
	{"dart", Dependency{Manager: "pub", File: "pubspec.yaml", Command: "dart pub get"}},
	{"swift", Dependency{Manager: "swift", File: "Package.swift", Command: "swift package resolve"}},
}

// venv makes a virtual environment where the workspace has none.
const venv = "{ test -x .venv/bin/python || python3 -m venv .venv; } && "

// Dependencies finds out what a workspace depends on from the names of the files
// at its top. What those hold is for the tools to read, in the sandbox.
func Dependencies(has func(name string) bool) []Dependency {
	var out []Dependency
	done := ""
	for i := range managers {
		m := &managers[i]
		if m.language != done && has(m.File) {
			out = append(out, m.Dependency)
			done = m.language
		}
	}
	return out
}
